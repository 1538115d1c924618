"""What the pictures of a report show: a run's model, and images of its data."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from taming.conditioning import Condition
from taming.data import ImageDataset
from taming.data.module import ImageDataModule
from taming.evaluation import in_proportion
from taming.generation import ImageGenerator, load_model
from taming.pictures import palette_of, to_uint8
from taming.runtime.errors import UserError
from taming.serialization import find_model
from taming.tokenizer import VQGAN

__all__ = ["Images", "OpenData", "Subject", "evenly_spaced", "load_subject"]

OpenData = Callable[[Path], ImageDataModule]

NUM_EXAMPLES, NUM_HELD_OUT, NUM_TRAIN = 24, 256, 1000  # images
MAX_NUMBERS = 10**8  # per set of images: 400 MB


class Images(NamedTuple):
    """Images of a dataset, without augmentation."""

    images: Tensor  # (b c H W)
    labels: Tensor | None = None  # (b,) int64
    conditions: Tensor | None = None  # (b c H W)

    def select(self, indices: Tensor) -> "Images":
        """Returns the images with these indices `(k,)`."""
        labels, conditions = (None if part is None else part[indices] for part in self[1:])
        return Images(self.images[indices], labels, conditions)

    def thin(self, count: int) -> "Images":
        """Returns at most `count` evenly spaced images."""
        return self.select(torch.tensor(evenly_spaced(len(self.images), count)))


def evenly_spaced(length: int, count: int) -> list[int]:
    """Returns at most `count` numbers of `range(length)`, with the first and the last."""
    if length <= count:
        return list(range(length))
    return [round(i * (length - 1) / max(count - 1, 1)) for i in range(count)]


@dataclass(frozen=True)
class Subject:
    """A run's model, and images of its data if the data can be opened.

    Attributes:
        tokenizer: the VQGAN.
        generator: the generator of a stage-2 run.
        examples: held-out images of all classes, for pictures.
        held_out: more held-out images, for numbers.
        train: training images, for nearest neighbours.
        class_names: names of the classes; empty without classes.
        colors: colours of label maps, see `taming.pictures.as_palette`.
    """

    tokenizer: VQGAN
    generator: ImageGenerator | None = None
    examples: Images | None = None
    held_out: Images | None = None
    train: Images | None = None
    class_names: Sequence[str] = ()
    colors: Sequence[Sequence[int]] | None = None

    def pixels(self, images: Tensor) -> np.ndarray:
        """Returns images as uint8 `(b H W 3)`."""
        return to_uint8(images, palette_of(self.tokenizer, self.colors))

    def captions(self, images: Images) -> list[str]:
        """Returns the class name of each image, or empty strings without classes."""
        if images.labels is None or not self.class_names:
            return [""] * len(images.images)
        names = dict(enumerate(self.class_names))
        return [names.get(label, str(label)) for label in images.labels.tolist()]

    def condition(self, images: Images) -> Condition:
        """Returns the condition from which the generator would sample such images."""
        assert self.generator is not None
        if self.generator.conditioning.takes_images:
            return images.conditions
        return images.labels if self.generator.conditioning.num_classes else None


def load_subject(
    run: Path, open_data: OpenData | None, device: torch.device | str
) -> tuple[Subject, dict[str, str], list[str]]:
    """Loads a run's model and images.

    Returns:
        The subject; facts about model and data by title; and sentences about what is missing.

    Raises:
        UserError: if the run has no model yet.
    """
    tokenizer, generator = load_model(run)
    model = generator or tokenizer
    model.to(device)
    facts = {
        "stage": "2, generator" if generator else "1, VQGAN",
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "codes": f"{tokenizer.codebook_size:,}",
    }
    path = find_model(run)
    if path.is_file():  # a checkpoint of a run in progress
        facts["model"] = str(path.relative_to(run))
    missing: list[str] = []
    images: dict[str, Images] = {}
    data: ImageDataModule | None = None
    try:
        if open_data is not None:
            opened = open_data(run)
            if not isinstance(opened, ImageDataModule):
                raise UserError("the run used a custom data module.")
            data, images = opened, select_images(opened.val_dataset, opened.train_dataset)
            facts["images"] = opened.summary()
    except UserError as error:
        missing.append(f"The report shows no images because the data could not be opened: {error}")
    names = data.class_names if data is not None else generator and generator.class_names
    subject = Subject(
        tokenizer,
        generator,
        **images,
        class_names=names or (),
        colors=None if data is None else data.palette,
    )
    return subject, facts, missing


def select_images(held_out: ImageDataset, train: ImageDataset) -> dict[str, Images]:
    """Selects and loads images for a `Subject`, deterministically."""
    first = held_out[0]
    size = sum(first[name].numel() for name in ("images", "conditions") if name in first)
    limit = max(1, MAX_NUMBERS // size)
    labels = [held_out.label(index) for index in range(len(held_out))]
    num_held_out = min(NUM_HELD_OUT, limit, len(held_out))
    indices = {
        "examples": balanced(labels, min(NUM_EXAMPLES, limit)),
        "held_out": in_proportion(labels, num_held_out, seed=0),
        "train": evenly_spaced(train.block or len(train), min(NUM_TRAIN, limit)),
    }
    datasets = {"examples": held_out, "held_out": held_out, "train": train}
    return {
        name: Images(**default_collate([datasets[name][index] for index in indices[name]]))
        for name in indices
    }


def balanced(labels: Sequence[int | None], count: int) -> list[int]:
    """Returns at most `count` indices, as many of each class, of at most `count` classes."""
    by_class = defaultdict(list)
    for index, label in enumerate(labels):
        by_class[-1 if label is None else label].append(index)
    classes = sorted(by_class)
    classes = [classes[i] for i in evenly_spaced(len(classes), count)]
    per_class = count // len(classes)
    return [by_class[c][i] for c in classes for i in evenly_spaced(len(by_class[c]), per_class)]
