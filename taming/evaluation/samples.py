"""Sets of samples, drawn from a generator or made before, measured against real images."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from taming.data import ImageDataset
from taming.data.module import ImageDataModule
from taming.evaluation.classification_accuracy import SampleSet, classification_accuracy
from taming.evaluation.judges import JudgedImages, compare_features, in_proportion
from taming.evaluation.neighbours import memorisation
from taming.evaluation.options import EvaluationOptions
from taming.evaluation.real_images import RealImages, choose_images
from taming.generation import ImageGenerator, SamplingOptions
from taming.pictures import class_grid, pixel_grid, to_uint8
from taming.runtime.contexts import evaluation_mode
from taming.runtime.process_group import gather, largest_share, rank
from taming.tokenizer import VQGAN

__all__ = ["Samples", "condition_key", "generator_samples", "measure_samples",
    "options_by_scale", "prepare_sampling", "training_numbers"]  # fmt: skip

GRID_CLASSES, GRID_IMAGES_PER_CLASS, GRID_IMAGES_WITHOUT_CLASSES = 12, 10, 100


class Samples(NamedTuple):
    """A set of samples. Each belongs to an image, which gives its condition, or is that image.

    Attributes:
        settings: how the set differs from the other sets, such as its guidance scale.
        name: title of the progress bar.
        dataset: the data set of the images.
        numbers: numbers of the images in the data set, in the order of the samples.
        sample: function from the position of a batch's first image and the batch to samples
            `(b c H W)`.
        shuffle_seed: seed that shuffles samples that are sorted by class, for numbers that depend
            on their order; None to keep the order.
    """

    settings: dict[str, Any]
    name: str
    dataset: ImageDataset
    numbers: Sequence[int]
    sample: Callable[[int, dict[str, Any]], Tensor]
    shuffle_seed: int | None = None


def condition_key(subject: ImageGenerator | VQGAN | ImageDataset) -> str | None:
    """Returns the key of the samples' condition in a batch; None without one."""
    if isinstance(subject, ImageDataset):
        return "labels" if subject.label(0) is not None else None
    if isinstance(subject, VQGAN):
        return None
    if subject.conditioning.takes_images:
        return "conditions"
    return None if subject.conditioning.num_classes is None else "labels"


def options_by_scale(
    generator: ImageGenerator, data: ImageDataModule, options: EvaluationOptions
) -> list[SamplingOptions]:
    """Returns the options of each guidance scale, with one batch size, for which a step compiles.

    Draws an image with each, so that options that the generator does not support fail now.
    """
    sampling = options.sampling
    size = min(sampling.images_at_once, largest_share(options.num_samples))
    key = condition_key(generator)
    condition = None if key is None else torch.as_tensor(data.val_dataset[0][key])[None]
    by_scale = []
    for scale in options.guidance_scales:
        guidance = replace(sampling.guidance, scale=scale)
        by_scale.append(replace(sampling, batch_size=size, guidance=guidance))
        generator.sample(1, condition, options=replace(by_scale[-1], compile=False))
    return by_scale


def prepare_sampling(
    generator: ImageGenerator, by_scale: Sequence[SamplingOptions], options: EvaluationOptions
) -> list[SamplingOptions]:
    """Converts the generator to its dtype, and decides for each scale whether its step compiles."""
    # The scales with guidance share a compiled step, and those without it share another.
    counts = Counter(one.guidance.is_off for one in by_scale)
    share = largest_share(options.num_samples)
    return [
        generator.prepare_sampling(one, options.dtype, share * counts[one.guidance.is_off])
        for one in by_scale
    ]


def generator_samples(
    generator: ImageGenerator, real: RealImages, options: SamplingOptions, num_samples: int
) -> Samples:
    """Returns samples of one guidance scale, with classes as frequent as in the training images."""
    key, scale = condition_key(generator), options.guidance.scale
    dataset = real.held_out_dataset if key == "conditions" else real.data.train_dataset
    numbers = choose_images(dataset, num_samples, options.seed, repeat=True)

    def sample(start: int, batch: dict[str, Any]) -> Tensor:
        condition, count = None if key is None else batch[key], len(batch["images"])
        with evaluation_mode(generator):
            return generator.sample(count, condition, options=options, first_image=start)

    name = f"sampling, guidance {scale:g}"
    return Samples({"guidance_scale": scale}, name, dataset, numbers, sample, real.data.seed)


def measure_samples(
    samples: Samples, real: RealImages, has_classes: bool
) -> tuple[dict[str, Any], str, Image.Image | None]:
    """Measures a set of samples.

    Returns:
        The numbers, the digest of the pixels, and a grid of the first samples of each class. They
        are meaningful on the first process only.
    """
    judges = real.judges if has_classes else replace(real.judges, classifier=None)
    judged, sample_set = JudgedImages(judges), None
    if judges.classifier is not None:
        sample_set = SampleSet(judges.classifier.resolution)
    labels = [samples.dataset.label(i) if has_classes else None for i in samples.numbers]
    in_grid = _grid_numbers(labels)
    pictures: dict[int, np.ndarray] = {}
    for start, batch in real.batches(samples.dataset, samples.numbers, samples.name):
        images, classes = samples.sample(start, batch), batch["labels"] if has_classes else None
        judged.update(images, classes)
        if sample_set is not None and classes is not None:
            sample_set.update(images, classes)
        numbered = enumerate(to_uint8(images.nan_to_num()), start)
        pictures |= {number: picture for number, picture in numbered if number in in_grid}
    judged.gather()
    all_pictures = chain.from_iterable(part.items() for part in gather(pictures))
    numbers = dict(samples.settings)
    if rank() == 0:
        numbers |= judged.numbers(real.held_out)
        numbers |= real.reference_numbers(judged, samples.shuffle_seed)
    if sample_set is not None:
        numbers |= classification_accuracy(sample_set, real)
    if rank() > 0:
        return {}, "", None
    if real.train is not None and not judged.num_not_finite:
        sets = (judged, real.held_out, real.train)
        numbers |= memorisation(*(images.features_on_device() for images in sets))
    grid = _grid(dict(sorted(all_pictures, key=lambda item: item[0])), judged)
    return numbers, judged.digest, grid


def training_numbers(real: RealImages, count: int) -> dict[str, Any]:
    """Returns the numbers of `count` training images as samples; on the first process only."""
    judges = real.judges
    assert real.train is not None and judges.features is not None
    size = real.train.num_images
    labels = [None] * size if real.train.labels is None else real.train.labels.tolist()
    numbers = in_proportion(labels, min(count, size), judges.seed)
    features = real.train.features_on_device()[numbers], real.held_out.features_on_device()
    compared = compare_features(*features, judges.features, paired=False, seed=judges.seed)
    return {"num_images": len(numbers), **compared}


def _grid_numbers(labels: Sequence[int | None]) -> list[int]:
    """Returns the numbers of the samples in a grid: the first of the first classes, by class."""
    by_class: dict[int | None, list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        count = GRID_IMAGES_WITHOUT_CLASSES if label is None else GRID_IMAGES_PER_CLASS
        if (label in by_class or len(by_class) < GRID_CLASSES) and len(by_class[label]) < count:
            by_class[label].append(number)
    return list(chain.from_iterable(by_class.values()))


def _grid(pictures: Mapping[int, np.ndarray], judged: JudgedImages) -> Image.Image:
    """Lays out samples, uint8 `(H W 3)` by number, in a row per class if they have classes."""
    if judged.labels is None:
        return pixel_grid(np.stack(list(pictures.values())), min_side=96)
    numbers = list(pictures)
    labels, predictions = judged.labels[numbers].tolist(), None
    if judged.logits is not None:
        predictions = judged.logits.argmax(1)[numbers].tolist()
    return class_grid(list(pictures.values()), labels, predictions, judged.judges.class_names)
