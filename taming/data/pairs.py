"""Pairs of an image and the picture or label map it is to be made from: its condition."""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from taming.data.image_folder import Check, ImageFolder
from taming.data.images import BrokenImageError, Color
from taming.data.transforms import ImageTransform
from taming.errors import UserError

__all__ = ["Pair", "PairFolder", "PairTransform"]

NUM_NAMED = 10

log = logging.getLogger(__name__)


class Pair(NamedTuple):
    """An image and its condition, loaded."""

    image: Image.Image
    condition: Image.Image


class PairFolder:
    """Images and their conditions from two folders, paired by name. A source for `ImageDataset`.

    `image/street/1.jpg` and `label/street/1.png` are a pair: the paths below the two folders are
    the same up to the suffix. Files without partner are left out, counted and named in the log.

    Args:
        images: what is below the images' folder. Both sources are reduced to the pairs, so that
            image i and condition i belong together.
        conditions: what is below the conditions' folder; pictures or label maps.
        folders: (images' folder, conditions' folder), with which their files' names begin.

    Attributes:
        broken: (name, reason) of every file left out; its partner is left out too.
        sizes: (height, width) of each image, once checked.

    Raises:
        UserError: if two files have the same name but for the suffix, or none has a partner.
    """

    in_memory = False

    def __init__(
        self, images: ImageFolder, conditions: ImageFolder, folders: tuple[str, str]
    ) -> None:
        self.images = images
        self.conditions = conditions
        self.description = images.description
        self.background: Color = images.background
        self.channels: int = images.channels
        self.max_broken_fraction = images.max_broken_fraction
        self.class_names: list[str] = []
        self.broken: list[tuple[str, str]] = []
        self.sizes: list[tuple[int, int]] | None = None
        self._folders = folders
        first = images.name(0), conditions.name(0)
        alone = self._pair_up()
        if not len(self):
            raise UserError(
                f"{self.description}: no image, such as {first[0]}, has a condition of the same "
                f"name, such as {first[1]}. Paths below the two folders must be the same up to the "
                "suffix (data.image_folder, data.condition_folder)."
            )
        if alone:
            log.warning(
                "%s: %d files have no partner and are left out (%s); %d pairs are left",
                self.description,
                len(alone),
                _some(alone),
                len(self),
            )

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int) -> Pair:
        """Decodes both files; raises `BrokenImageError`."""
        image = self.images.load(index)
        try:
            return Pair(image, self.conditions.load(index))
        except BrokenImageError as error:
            name = self.conditions.name(index)
            raise BrokenImageError(f"its condition {name}: {error}") from error

    def label(self, index: int) -> None:
        """None: pairs have no classes."""

    def name(self, index: int) -> str:
        """Of the image: its path below the folder or in the archive."""
        return self.images.name(index)

    def fingerprint(self) -> str:
        """Hex digest of both sides' files and of how they are read."""
        both = f"{self.images.fingerprint()} {self.conditions.fingerprint()}"
        return hashlib.sha256(both.encode()).hexdigest()

    def drop_broken(self, check: Check) -> None:
        """Reads every file and leaves out the pairs of which one is broken (see `ImageFolder`).

        Raises:
            UserError: if too many are broken, or an image and its condition differ in shape.
        """
        num_pairs = len(self)
        self.images.drop_broken(check)
        self.conditions.drop_broken(check)
        self.broken = self.images.broken + self.conditions.broken
        if self.broken:
            self._pair_up()
        num_lost = num_pairs - len(self)
        if num_lost > self.max_broken_fraction * num_pairs or num_lost == num_pairs:
            raise UserError(
                f"{self.description}: of {num_lost} of {num_pairs} pairs a file is broken, more "
                f"than data.max_broken_fraction={self.max_broken_fraction:g} allows "
                f"({_some([name for name, _ in self.broken])}). Repair or remove them, or raise "
                "data.max_broken_fraction."
            )
        self.sizes = self.images.sizes
        if self.sizes is not None and self.conditions.sizes is not None:
            for index, size in enumerate(self.sizes):
                check_same_shape(size, self.conditions.sizes[index], self.name(index))

    def _pair_up(self) -> list[str]:
        """Keeps the pairs only, in the images' order; returns the names of the other files."""
        images = self._by_stem(self.images, self._folders[0])
        conditions = self._by_stem(self.conditions, self._folders[1])
        alone = [self.images.name(i) for stem, i in images.items() if stem not in conditions]
        alone += [self.conditions.name(i) for stem, i in conditions.items() if stem not in images]
        stems = [stem for stem in images if stem in conditions]
        self.images.keep([images[stem] for stem in stems])
        self.conditions.keep([conditions[stem] for stem in stems])
        return alone

    def _by_stem(self, side: ImageFolder, folder: str) -> dict[PurePosixPath, int]:
        found: dict[PurePosixPath, int] = {}
        for index in range(len(side)):
            stem = PurePosixPath(side.name(index)).relative_to(folder).with_suffix("")
            if stem in found:
                raise UserError(
                    f"{self.description}: {side.name(found[stem])} and {side.name(index)} have the "
                    "same name, so that it is not clear which of them is the partner. Remove one."
                )
            found[stem] = index
        return found


@dataclass(frozen=True, kw_only=True)
class PairTransform(ImageTransform):
    """`ImageTransform` of pairs: an image and its condition get the same window, mirrored alike.

    The condition's file may have another size than the image's, if it is of the same shape: then
    its window is scaled.

    Args:
        condition: gives the condition's resolution, its filter and its kind of tensor. Its other
            settings are not used: the view is the image's.
        condition_channels: 1, 3, or the number of classes of label maps.

    Raises:
        UserError: also if the two resolutions differ in shape, or for `pad` and `random_shift`.
    """

    condition: ImageTransform
    condition_channels: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pad or self.random_shift:
            raise UserError("pairs can be neither padded nor shifted: pad and random_shift 0.")
        (height, width), (condition_height, condition_width) = self.size, self.condition.size
        if height * condition_width != width * condition_height:
            raise UserError(
                f"data.condition_resolution is {condition_height}x{condition_width} and "
                f"data.resolution {height}x{width}: they must be of the same shape, so that image "
                "and condition show the same."
            )

    def item(
        self, loaded: Any, rng: np.random.Generator | None = None, name: str = "the image"
    ) -> dict[str, torch.Tensor]:
        """A `Pair` as `images` `(c H W)` and `conditions` `(c' H' W')`."""
        image, condition = loaded
        size, condition_size = (image.height, image.width), (condition.height, condition.width)
        self.check_size(size, name)
        check_same_shape(size, condition_size, name)
        view = self.view(size, rng)
        left, top, right, bottom = view.window
        y, x = condition_size[0] / size[0], condition_size[1] / size[1]
        scaled = view._replace(window=(left * x, top * y, right * x, bottom * y))
        return {
            "images": self.show(image, view),
            "conditions": self.condition.show(condition, scaled),
        }

    def kind(self, channels: int) -> str:
        """`RGB from label maps of 12 classes`."""
        height, width = self.condition.size
        size = "" if self.condition.size == self.size else f", {height}x{width}"
        return f"{super().kind(channels)} from {self.condition.kind(self.condition_channels)}{size}"

    @property
    def noun(self) -> str:
        """Pairs."""
        return "pairs"


def check_same_shape(size: tuple[int, int], condition_size: tuple[int, int], name: str) -> None:
    """Raises a `UserError` unless two (height, width) have the same aspect, up to one pixel."""
    (height, width), (condition_height, condition_width) = size, condition_size
    scale = condition_width / width
    if abs(condition_height - height * scale) > max(1.0, scale):
        raise UserError(
            f"{name} is {height}x{width} pixels (height x width) and its condition "
            f"{condition_height}x{condition_width}: they must show the same, and so be of the same "
            "shape."
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:NUM_NAMED]) + (", …" if len(names) > NUM_NAMED else "")
