"""What the pictures of a report are made from: a run's model, and images to show it on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from taming.conditioning import Condition
from taming.generation import ImageGenerator
from taming.pictures import palette_of, to_uint8
from taming.tokenizer import VQGAN

__all__ = ["Images", "Subject", "evenly"]


class Images(NamedTuple):
    """Some images of a data set, not augmented."""

    images: Tensor  # (b c H W)
    labels: Tensor | None = None  # (b,) int64
    conditions: Tensor | None = None  # (b c H W)

    def at(self, numbers: Tensor) -> "Images":
        """Returns those with these numbers `(k,)`."""
        labels, conditions = (None if part is None else part[numbers] for part in self[1:])
        return Images(self.images[numbers], labels, conditions)

    def some(self, count: int) -> "Images":
        """Returns at most so many of them, evenly spread."""
        return self.at(torch.tensor(evenly(len(self.images), count)))


def evenly(count: int, most: int) -> list[int]:
    """Returns at most so many of `range(count)`, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / max(most - 1, 1)) for i in range(most)]


@dataclass(frozen=True)
class Subject:
    """A run's model with the images it is shown on; without data these are None.

    Attributes:
        tokenizer: the VQGAN.
        generator: the generator, of a stage-2 run.
        shown: held-out images of all classes, to be looked at.
        held_out: more of them, for numbers.
        train: training images, among which neighbours are looked for.
        class_names: names of the classes, empty without classes.
        colors: of label maps, see `taming.pictures.as_palette`.
    """

    tokenizer: VQGAN
    generator: ImageGenerator | None = None
    shown: Images | None = None
    held_out: Images | None = None
    train: Images | None = None
    class_names: Sequence[str] = ()
    colors: Sequence[Sequence[int]] | None = None

    def pixels(self, images: Tensor) -> np.ndarray:
        """Returns images as uint8 `(b H W 3)`."""
        return to_uint8(images, palette_of(self.tokenizer, self.colors))

    def captions(self, some: Images) -> list[str]:
        """Returns the class of each image; empty without classes."""
        if some.labels is None or not self.class_names:
            return [""] * len(some.images)
        names = dict(enumerate(self.class_names))
        return [names.get(label, str(label)) for label in some.labels.tolist()]

    def condition(self, some: Images) -> Condition:
        """Returns what the generator is asked for to draw such images."""
        assert self.generator is not None
        if self.generator.conditioning.takes_images:
            return some.conditions
        return some.labels if self.generator.conditioning.num_classes else None
