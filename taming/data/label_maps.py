"""Label maps: images whose pixel values are class numbers, as one-hot tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le
from PIL import Image

from taming.data.images import File, decoding
from taming.errors import UserError

__all__ = ["LabelMapReader", "one_hot"]

ONE_CHANNEL = ("1", "L", "P", "I", "I;16", "I;16B")


@dataclass(frozen=True)
class LabelMapReader:
    """Reads class numbers: a pixel's value, grey or palette index, is its class.

    Args:
        num_classes: with the class of unlabelled pixels.
        unlabelled: pixel value of unlabelled pixels; None if there are none.
        unlabelled_class: their class; None for one of their own, the last.
        palette: red, green and blue, 0 to 255, by class, to show label maps in; None for a
            generated one.
    """

    num_classes: Annotated[int, Ge(2), Le(256)]
    unlabelled: int | None = 255
    unlabelled_class: int | None = None
    palette: Sequence[Sequence[int]] | None = field(default=None, repr=False)
    label_maps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.palette is not None and len(self.palette) < self.num_classes:
            raise UserError(
                f"the palette has {len(self.palette)} colours for {self.num_classes} classes."
            )

    def __str__(self) -> str:
        return f"label maps of {self.num_classes} classes"

    @property
    def channels(self) -> int:
        """Channels of the tensors: one a class."""
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
                    f"{name} is a {opened.format} picture of mode {opened.mode}, not a label map, "
                    "whose only channel, grey or palette, holds class numbers. Name the folder of "
                    "the label maps (subfolder, or condition_folder of pairs)."
                )
            classes = self._class_numbers(np.asarray(opened), name)
        return Image.frombytes("P", classes.shape[::-1], classes.tobytes())

    def _class_numbers(self, values: np.ndarray, name: str) -> np.ndarray:
        """Maps pixel values `(H W)` to class numbers, uint8 `(H W)`."""
        classes = values.astype(np.int64)
        last = self.num_classes - 1
        empty = classes == self.unlabelled  # nowhere, if that is None
        if empty.any():
            of_its_own = self.unlabelled_class is None and self.unlabelled != last
            if of_its_own and (classes == last).any():
                raise UserError(
                    f"{name} has unlabelled pixels ({self.unlabelled}), whose class is the last, "
                    f"{last}, and other pixels of class {last}: raise the number of classes by "
                    "one, or choose an unlabelled_class."
                )
            classes[empty] = last if self.unlabelled_class is None else self.unlabelled_class
        for value in (classes.min(), classes.max()):
            if not 0 <= value <= last:
                raise UserError(
                    f"{name} has a pixel of value {value}, and there are {self.num_classes} "
                    f"classes, 0 to {last}: correct their number, or set unlabelled={value} if it "
                    "stands for unlabelled pixels."
                )
        return classes.astype(np.uint8)

    def tensor(self, image: Image.Image) -> torch.Tensor:
        """Turns class numbers into one-hot `(c H W)` of 0 and 1."""
        return one_hot(torch.from_numpy(np.array(image)), self.num_classes)


def one_hot(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Encodes class numbers `(… H W)` of any integer type as float32 `(… c H W)` of 0 and 1."""
    shape = (*classes.shape[:-2], num_classes, *classes.shape[-2:])
    return torch.zeros(shape, device=classes.device).scatter_(-3, classes.long().unsqueeze(-3), 1.0)
