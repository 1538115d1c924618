"""Samples measured beside real images."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from taming.data import ImageDataset
from taming.data.module import ImageDataModule
from taming.evaluation import (
    ClassifierTraining,
    JudgedImages,
    compare_features,
    in_proportion,
    memorisation,
)
from taming.evaluation.classifier_training import SampleSet, train_on_samples
from taming.evaluation.pictures import shown_samples
from taming.evaluation.real_images import RealImages, chosen
from taming.generation import ImageGenerator, SamplingDtype, SamplingOptions
from taming.pictures import to_uint8
from taming.runtime.contexts import evaluation_mode
from taming.runtime.process_group import gather, largest_share, rank
from taming.tokenizer import VQGAN

__all__ = [
    "condition_key",
    "drawn_samples",
    "given_samples",
    "guided_options",
    "measure_samples",
    "prepare_sampling",
    "training_numbers",
]


class Samples(NamedTuple):
    """A set of samples, one for each of some images: of it, of its condition, or unconditional."""

    settings: dict[str, Any]  # in which it differs from the other sets
    name: str
    dataset: ImageDataset
    numbers: Sequence[int]  # of the images in the data set
    make: Callable[[int, dict[str, Any]], Tensor]  # from the first one's place, and a batch of them


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
) -> Samples:
    """Returns the samples of one guidance scale, which are drawn as they are measured."""
    key, scale = condition_key(generator), options.guidance.scale
    dataset = data.val_dataset if key == "conditions" else data.train_dataset
    numbers = chosen(dataset, num_samples, options.seed, repeat=True)

    def draw(start: int, batch: dict[str, Any]) -> Tensor:
        condition, count = None if key is None else batch[key], len(batch["images"])
        with evaluation_mode(generator):
            return generator.sample(count, condition, options=options, first_image=start)

    name = f"sampling, guidance {scale:g}"
    return Samples({"guidance_scale": scale}, name, dataset, numbers, draw)


def given_samples(images: ImageDataset) -> Samples:
    """Returns images that were generated before."""
    return Samples({}, "samples", images, range(len(images)), lambda _, batch: batch["images"])


def measure_samples(
    samples: Samples, real: RealImages, training: ClassifierTraining, has_classes: bool
) -> tuple[dict[str, Any], JudgedImages, dict[int, np.ndarray]]:
    """Returns the numbers of samples, the samples as judged, and pictures by number to be shown.

    They are complete on the first process only.
    """
    judges = real.judges if has_classes else replace(real.judges, classifier=None)
    judged, of_classes = JudgedImages(judges), None
    if judges.classifier is not None:
        of_classes = SampleSet(judges.classifier.resolution)
    dataset = samples.dataset
    pictures: dict[int, np.ndarray] = {}
    shown = shown_samples([dataset.label(i) if has_classes else None for i in samples.numbers])
    for start, batch in real.batches(dataset, samples.numbers, samples.name):
        images, labels = samples.make(start, batch), batch["labels"] if has_classes else None
        judged.update(images, labels)
        if of_classes is not None and labels is not None:
            of_classes.update(images, labels)
        numbered = enumerate(to_uint8(images.nan_to_num()), start)
        pictures |= {number: picture for number, picture in numbered if number in shown}
    judged.gather()
    everywhere = chain.from_iterable(part.items() for part in gather(pictures))
    pictures = dict(sorted(everywhere, key=lambda item: item[0]))
    row = dict(samples.settings)
    if rank() == 0:
        row |= judged.numbers(real.val)
    if of_classes is not None:
        own = train_on_samples(of_classes, real.data, training, judges.device)
        own_judges = replace(judges, classifier=own.to(judges.device), features=None)
        accuracy = real.judge_val(own_judges, "their classifier")
        if rank() == 0:
            found = accuracy.numbers()
            for name in ("agreement", "agreement_interval"):
                if name in found:
                    row[name.replace("agreement", "classification_accuracy")] = found[name]
    if rank() == 0 and real.train is not None and not judged.num_not_finite:
        row |= memorisation(*(x.placed_features() for x in (judged, real.val, real.train)))
    return row, judged, pictures


def training_numbers(real: RealImages, count: int) -> dict[str, Any]:
    """Returns the numbers of as many training images, as if they were samples; first rank only."""
    judges = real.judges
    assert real.train is not None and judges.features is not None
    labels = real.train.labels
    known = [None] * real.train.num_images if labels is None else labels.tolist()
    some = in_proportion(known, min(count, len(known)), judges.seed)
    both = real.train.placed_features()[some], real.val.placed_features()
    return {"num_images": len(some), **compare_features(*both, judges.features, judges.seed)}
