"""Label maps: pictures whose pixel values are class numbers, as one-hot tensors."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image

from taming.data.files import FileEntry
from taming.data.image_folder import ImageFolder
from taming.data.images import BrokenImageError, reason
from taming.data.transforms import ImageTransform
from taming.errors import UserError

__all__ = ["LabelMapFolder", "LabelMapReader", "LabelMapTransform", "one_hot"]

MAX_CLASSES = 256  # class numbers are bytes
ONE_CHANNEL = ("1", "L", "P", "I", "I;16", "I;16B")


@dataclass(frozen=True, kw_only=True)
class LabelMapReader:
    """Reads class numbers from files: a pixel's value, grey or palette index, is its class.

    Args:
        num_classes: 2 to 256, with the class of unlabelled pixels.
        unlabelled: pixel value of unlabelled pixels; None if there are none.
        unlabelled_class: the class they are given; None for one of their own, the last.
        key, folder_key: names of the settings that give `num_classes` and the folder the label maps
            are in, for messages; a `key` of None: a model gives it.
        group: the settings `unlabelled` and `unlabelled_class` are of, likewise.

    Raises:
        UserError: for values that make no sense together.
    """

    num_classes: int
    unlabelled: int | None = 255
    unlabelled_class: int | None = None
    key: str | None = field(default="data.channels", repr=False)
    folder_key: str = field(default="data.subfolder", repr=False)
    group: str = field(default="data", repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.num_classes, int) or not 2 <= self.num_classes <= MAX_CLASSES:
            raise UserError(
                f"{self.key or 'num_classes'} is {self.num_classes}: of label maps it is the "
                f"number of classes, 2 to {MAX_CLASSES}, with the class of unlabelled pixels."
            )
        if self.unlabelled is not None and self.unlabelled < 0:
            raise UserError(
                f"{self.group}.unlabelled is {self.unlabelled}: give a pixel value, or null."
            )
        if self.unlabelled_class is not None and not 0 <= self.unlabelled_class < self.num_classes:
            model = f"with {self.key}={self.num_classes}" if self.key else "in this model"
            raise UserError(
                f"{self.group}.unlabelled_class is {self.unlabelled_class}: {model} there are the "
                f"classes 0 to {self.num_classes - 1}."
            )

    def __call__(self, file: str | Path | BinaryIO, name: str) -> Image.Image:
        """The class numbers of a file, an image of mode `L`; palettes are not resolved.

        Args:
            file: path or open binary file.
            name: what to call it in an error.

        Raises:
            BrokenImageError: if it cannot be decoded completely.
            UserError: if it is no label map, or of other classes.
        """
        try:
            with Image.open(file) as opened:
                opened.load()
                mode, kind, values = opened.mode, opened.format, np.asarray(opened)
        except Exception as error:  # decoders raise nearly every exception there is
            raise BrokenImageError(reason(error)) from error
        if mode not in ONE_CHANNEL or kind == "JPEG":
            raise UserError(
                f"{name} is a {kind} picture of mode {mode}, not a label map: that is a PNG file "
                "with one channel, grey or palette, whose pixel values are class numbers. If label "
                f"maps lie beside pictures, name their folder with {self.folder_key}."
            )
        return Image.fromarray(self.class_numbers(values, name))

    def class_numbers(self, values: np.ndarray, name: str) -> np.ndarray:
        """Pixel values `(H W)` to class numbers, uint8 `(H W)`; errors as above."""
        classes = values.astype(np.int64)
        last = self.num_classes - 1
        empty = classes == self.unlabelled  # nowhere, if that is None
        if empty.any():
            their_own = self.unlabelled_class is None and self.unlabelled != last
            if their_own and (classes == last).any():
                more = f"raise {self.key} by one, or " if self.key else ""
                raise UserError(
                    f"{name} has unlabelled pixels ({self.group}.unlabelled={self.unlabelled}), "
                    f"whose class is the last, {last}, and other pixels of class {last} too: "
                    f"{more}choose a {self.group}.unlabelled_class."
                )
            classes[empty] = last if self.unlabelled_class is None else self.unlabelled_class
        for value in (classes.min(), classes.max()):
            if not 0 <= value <= last:
                known = f"{self.key}={self.num_classes}" if self.key else "the model"
                more = f"set {self.key} to the number of classes; " if self.key else ""
                raise UserError(
                    f"{name} has a pixel of value {value}, and {known} has the classes 0 to "
                    f"{last}: {more}if {value} stands for unlabelled pixels, set "
                    f"{self.group}.unlabelled={value}."
                )
        return classes.astype(np.uint8)


class LabelMapFolder(ImageFolder):
    """The label maps of a folder or `.zip` file. A source for `ImageDataset`.

    Args:
        path: the folder or archive; searched recursively, hidden files and `__MACOSX` left out.
        reader: from files to class numbers.
        max_broken_fraction, key, subfolder, subfolder_key: see `ImageFolder`.

    Raises:
        MissingPathError: if there is nothing at `path`.
        UserError: if there are no images; in `load` and `drop_broken`, for a file that is no label
            map or has a value that is no class.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        reader: LabelMapReader,
        max_broken_fraction: float,
        key: str = "data.path",
        subfolder: str | None = None,
        subfolder_key: str = "data.subfolder",
    ) -> None:
        super().__init__(
            path,
            channels=1,
            background=(0, 0, 0),
            labels="none",
            max_broken_fraction=max_broken_fraction,
            key=key,
            subfolder=subfolder,
            subfolder_key=subfolder_key,
        )
        self.channels = reader.num_classes
        self.reader = reader

    def fingerprint(self) -> str:
        """Hex digest of the files' names, sizes and stamps, and of how they are read."""
        return hashlib.sha256(f"{super().fingerprint()} {self.reader}".encode()).hexdigest()

    def _decode(self, entry: FileEntry) -> Image.Image:
        return self.reader(self._open(entry), f"{self.description}: {entry.name}")


@dataclass(frozen=True, kw_only=True)
class LabelMapTransform(ImageTransform):
    """`ImageTransform` of label maps: pixels are picked, never mixed, and the result is one-hot.

    With the same sizes and random numbers it takes the same window and mirrors alike, so that a
    picture's label map stays its own.

    Args:
        num_classes: channels of the result.

    Raises:
        UserError: also for `pad` and `random_shift`, which would need a class to fill with.
    """

    num_classes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pad or self.random_shift:
            raise UserError("label maps can be neither padded nor shifted: pad and random_shift 0.")

    def kind(self, channels: int) -> str:
        """`label maps of 12 classes`."""
        assert channels == self.num_classes
        return f"label maps of {channels} classes"

    @property
    def _resampling(self) -> Image.Resampling:
        return Image.Resampling.NEAREST

    def _to_tensor(self, image: Image.Image) -> torch.Tensor:
        return one_hot(torch.from_numpy(np.array(image)), self.num_classes)


def one_hot(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Class numbers `(… H W)` of any integer type to float32 `(… c H W)` of 0 and 1."""
    shape = (*classes.shape[:-2], num_classes, *classes.shape[-2:])
    return torch.zeros(shape, device=classes.device).scatter_(-3, classes.long().unsqueeze(-3), 1.0)
