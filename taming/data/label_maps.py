"""Label maps: images whose pixel values are class numbers, as one-hot tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from PIL import Image

from taming.data.images import File, decoding
from taming.errors import UserError

__all__ = ["LabelMapReader", "one_hot"]

ONE_CHANNEL = ("1", "L", "P", "I", "I;16", "I;16B")


@dataclass(frozen=True)
class LabelMapReader:
    """Reads class numbers: a pixel's value, grey or palette index, is its class.

    Args:
        num_classes: 2 to 256, with the class of unlabelled pixels.
        unlabelled: pixel value of unlabelled pixels; None if there are none.
        unlabelled_class: the class they are given; None for one of their own, the last.
        palette: red, green and blue, 0 to 255, by class, to show label maps in; None for a
            generated one.
    """

    num_classes: int
    unlabelled: int | None = 255
    unlabelled_class: int | None = None
    palette: Sequence[Sequence[int]] | None = field(default=None, repr=False)
    label_maps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.num_classes or not 2 <= self.num_classes <= 256:
            raise UserError(
                f"the number of classes of the label maps is {self.num_classes}: give 2 to 256, "
                "counting the class of unlabelled pixels (data.num_classes of pairs, data.channels "
                "of label maps alone)."
            )
        if self.unlabelled_class is not None and not 0 <= self.unlabelled_class < self.num_classes:
            raise UserError(
                f"unlabelled_class is {self.unlabelled_class}: there are the classes 0 to "
                f"{self.num_classes - 1}."
            )
        if self.palette is not None and len(self.palette) < self.num_classes:
            raise UserError(
                f"the palette has {len(self.palette)} colours for {self.num_classes} classes."
            )

    def __str__(self) -> str:
        return f"label maps of {self.num_classes} classes"

    @property
    def channels(self) -> int:
        """The number of classes."""
        return self.num_classes

    @decoding()
    def read(self, file: File, name: str) -> Image.Image:
        """Decodes a file to class numbers, an image of mode `P`.

        Raises:
            BrokenImageError: if it cannot be decoded completely.
            UserError: if it is no label map, or of other classes.
        """
        with Image.open(file) as opened:
            opened.load()
            if opened.mode not in ONE_CHANNEL or opened.format == "JPEG":
                raise UserError(
                    f"{name} is a {opened.format} picture of mode {opened.mode}, not a label map: "
                    "that is a PNG file with one channel, grey or palette, whose pixel values are "
                    "class numbers. If label maps lie beside pictures, name their folder "
                    "(subfolder, or condition_folder of pairs)."
                )
            classes = self.class_numbers(np.asarray(opened), name)
        return Image.frombytes("P", classes.shape[::-1], classes.tobytes())

    def class_numbers(self, values: np.ndarray, name: str) -> np.ndarray:
        """Maps pixel values `(H W)` to class numbers, uint8 `(H W)`; errors as in `read`."""
        classes = values.astype(np.int64)
        last = self.num_classes - 1
        empty = classes == self.unlabelled  # nowhere, if that is None
        if empty.any():
            their_own = self.unlabelled_class is None and self.unlabelled != last
            if their_own and (classes == last).any():
                raise UserError(
                    f"{name} has unlabelled pixels (unlabelled={self.unlabelled}), whose class is "
                    f"the last, {last}, and other pixels of class {last} too: raise the number of "
                    "classes by one, or choose an unlabelled_class."
                )
            classes[empty] = last if self.unlabelled_class is None else self.unlabelled_class
        for value in (classes.min(), classes.max()):
            if not 0 <= value <= last:
                raise UserError(
                    f"{name} has a pixel of value {value}, and there are {self.num_classes} "
                    f"classes, 0 to {last}: correct the number of classes, or, if {value} stands "
                    f"for unlabelled pixels, set unlabelled={value}."
                )
        return classes.astype(np.uint8)

    def tensor(self, image: Image.Image) -> torch.Tensor:
        """One-hot `(c H W)` of 0 and 1."""
        return one_hot(torch.from_numpy(np.array(image)), self.num_classes)


def one_hot(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Class numbers `(… H W)` of any integer type to float32 `(… c H W)` of 0 and 1."""
    shape = (*classes.shape[:-2], num_classes, *classes.shape[-2:])
    return torch.zeros(shape, device=classes.device).scatter_(-3, classes.long().unsqueeze(-3), 1.0)
