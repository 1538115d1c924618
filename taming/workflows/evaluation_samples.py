"""Samples measured beside real images."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor

from taming.contexts import evaluation_mode
from taming.data import ImageDataset
from taming.data.module import ImageDataModule
from taming.evaluation import (
    ClassifierTraining,
    JudgedImages,
    Judges,
    compare_features,
    in_proportion,
    memorisation,
)
from taming.generation import ImageGenerator, SamplingDtype, SamplingOptions
from taming.pictures import to_uint8
from taming.ranks import dealt, gather, largest_share, rank
from taming.vqgan import VQGAN
from taming.workflows.evaluation_classifier import SampleSet, train_on_samples
from taming.workflows.evaluation_data import RealImages, chosen, dealt_batches
from taming.workflows.evaluation_pictures import Shown, first_of_each

__all__ = [
    "condition_key",
    "drawn_samples",
    "given_samples",
    "guided_options",
    "measure_samples",
    "prepare_sampling",
    "training_numbers",
]


class SampleBatch(NamedTuple):
    """Some of a set's samples."""

    start: int  # number of the first one
    images: Tensor  # (b c H W) in [-1, 1]
    labels: Tensor | None  # (b,)


class SampleBatches(NamedTuple):
    """A set of samples, of which each process has the batches `dealt` to it."""

    settings: dict[str, Any]  # in which it differs from the other sets
    batches: Iterable[SampleBatch]


def condition_key(subject: ImageGenerator | VQGAN | ImageDataset) -> str | None:
    """Returns what a batch calls the samples' condition; None without one."""
    if isinstance(subject, ImageDataset):
        return "labels" if subject.label(0) is not None else None
    if isinstance(subject, VQGAN):
        return None
    if subject.conditioning.takes_images:
        return "conditions"
    return None if subject.conditioning.num_classes is None else "labels"


def guided_options(
    options: SamplingOptions, scales: Sequence[float], num_samples: int
) -> list[SamplingOptions]:
    """Returns the options of each guidance scale, all of the batch size of the largest share."""
    size = min(options.images_at_once, largest_share(num_samples))  # a step is compiled for one
    return [
        replace(options, batch_size=size, guidance=replace(options.guidance, scale=scale))
        for scale in scales
    ]


def prepare_sampling(
    generator: ImageGenerator,
    guided: Sequence[SamplingOptions],
    num_samples: int,
    dtype: SamplingDtype,
) -> list[SamplingOptions]:
    """Converts the generator, and settles the compilation of each guidance scale's sampling."""
    kinds = Counter(one.guidance.is_off for one in guided)  # all of a kind share a step
    share = largest_share(num_samples)
    return [
        generator.prepare_sampling(one, dtype, share * kinds[one.guidance.is_off]) for one in guided
    ]


def drawn_samples(
    generator: ImageGenerator, data: ImageDataModule, options: SamplingOptions, num_samples: int
) -> SampleBatches:
    """Returns the samples of one guidance scale, drawn as they are asked for."""
    key, size, scale = condition_key(generator), options.images_at_once, options.guidance.scale
    dataset = data.val_dataset if key == "conditions" else data.train_dataset
    numbers = chosen(dataset, num_samples, options.seed, repeat=True)

    def draw() -> Iterator[SampleBatch]:
        starts = dealt(range(0, num_samples, size))
        batches = dealt_batches(data, dataset, numbers, size, f"sampling, guidance {scale:g}")
        for start, batch in zip(starts, batches, strict=True):
            condition, count = None if key is None else batch[key], len(batch["images"])
            with evaluation_mode(generator):
                samples = generator.sample(count, condition, options=options, first_image=start)
            yield SampleBatch(start, samples, batch["labels"] if key == "labels" else None)

    return SampleBatches({"guidance_scale": scale}, draw())


def given_samples(images: ImageDataset, data: ImageDataModule, batch_size: int) -> SampleBatches:
    """Returns images that were generated before."""
    size = min(batch_size, largest_share(len(images)))
    starts = dealt(range(0, len(images), size))
    batches = dealt_batches(data, images, range(len(images)), size, "samples")
    has_classes = condition_key(images) is not None
    read = (
        SampleBatch(start, batch["images"], batch["labels"] if has_classes else None)
        for start, batch in zip(starts, batches, strict=True)
    )
    return SampleBatches({}, read)


def measure_samples(
    samples: SampleBatches, real: RealImages, training: ClassifierTraining, has_classes: bool
) -> tuple[dict[str, Any], JudgedImages, list[Shown]]:
    """Returns the numbers of samples, the samples as judged, and those that are shown.

    They are complete on the first process only.
    """
    judges = real.judges if has_classes else replace(real.judges, classifier=None)
    judged = JudgedImages(judges)
    shown: list[Shown] = []
    of_classes = judges.classifier and SampleSet(judges.classifier.resolution)
    for start, images, labels in samples.batches:
        predictions = judged.update(images, labels)
        if of_classes and labels is not None:
            of_classes.update(images, labels)
        numbers = range(start, start + len(images))
        classes = [-1] * len(images) if labels is None else labels.tolist()
        shown += map(Shown, numbers, classes, to_uint8(images.nan_to_num()), predictions)
        shown = first_of_each(shown)
    judged.gather()
    shown = first_of_each(sorted(chain.from_iterable(gather(shown)), key=lambda one: one.number))
    row = dict(samples.settings)
    if rank() == 0:
        row |= judged.numbers(real.val, real.data.class_names, real.seed)
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
