"""Samples measured beside real images."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor

from taming.evaluation import (
    ClassifierTraining,
    JudgedImages,
    Judges,
    compare_features,
    in_proportion,
    memorisation,
)
from taming.pictures import to_uint8
from taming.ranks import gather, rank
from taming.workflows.evaluation_classifier import SampleSet, train_on_samples
from taming.workflows.evaluation_data import RealImages
from taming.workflows.evaluation_pictures import Shown, first_of_each

__all__ = ["SampleBatch", "measure_samples", "training_numbers"]


class SampleBatch(NamedTuple):
    """Some of the samples."""

    start: int  # number of the first one
    images: Tensor  # (b c H W) in [-1, 1]
    labels: Tensor | None  # (b,)


def measure_samples(
    batches: Iterable[SampleBatch],
    real: RealImages,
    training: ClassifierTraining,
    has_classes: bool,
) -> tuple[dict[str, Any], JudgedImages, list[Shown]]:
    """Returns the numbers of samples, the samples as judged, and those that are shown.

    Every process has the batches `dealt` to it; what is returned is whole on the first one.
    """
    judges = real.judges if has_classes else replace(real.judges, classifier=None)
    judged = JudgedImages(judges)
    shown: list[Shown] = []
    of_classes = judges.classifier and SampleSet(judges.classifier.resolution)
    for start, images, labels in batches:
        predictions = judged.update(images, labels)
        if of_classes and labels is not None:
            of_classes.update(images, labels)
        numbers = range(start, start + len(images))
        classes = [-1] * len(images) if labels is None else labels.tolist()
        shown += map(Shown, numbers, classes, to_uint8(images.nan_to_num()), predictions)
        shown = first_of_each(shown)
    judged.gather()
    shown = first_of_each(sorted(chain.from_iterable(gather(shown)), key=lambda one: one.number))
    row = {} if rank() > 0 else judged.numbers(real.val, real.data.class_names, real.seed)
    if of_classes:
        own = train_on_samples(of_classes, real.data, training, judges.device)
        own_judges = Judges(own.to(judges.device), None, judges.device)
        accuracy = real.judge_val(own_judges, "their classifier")
        if rank() == 0:
            found = accuracy.numbers(seed=real.seed)
            row["classification_accuracy"] = found["agreement"]
            if "agreement_interval" in found:
                row["classification_accuracy_interval"] = found["agreement_interval"]
    if rank() == 0 and real.train is not None and not judged.num_not_finite:
        row |= memorisation(*(real.features(x) for x in (judged, real.val, real.train)))
    return row, judged, shown


def training_numbers(real: RealImages, count: int) -> dict[str, Any]:
    """Returns the numbers of as many training images, as if they were samples; first rank only."""
    assert real.train is not None and real.judges.features is not None
    labels = real.train.labels
    known = [None] * real.train.num_images if labels is None else labels.tolist()
    some = in_proportion(known, min(count, len(known)), real.seed)
    features = real.features(real.train)[some]
    found = compare_features(features, real.features(real.val), real.judges.features, real.seed)
    return {"num_images": len(some), **found}
