"""A list of images as a map-style data set of tensors."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

from taming.data.readers import AnyImage, BrokenImageError, Reader
from taming.data.transforms import ImageTransform
from taming.runtime.errors import UserError

__all__ = ["ImageDataset", "ImageList", "Part", "naming"]

log = logging.getLogger(__name__)


class ImageList(Protocol):
    """Images by number, decoded when they are needed, such as `ImageFolder` and `ImageArray`.

    Attributes:
        description: name for messages and summaries.
        reader: turns what `load` returns into tensors.
        class_names: empty without classes.
        labels: the class of each image, if there are classes.
        groups: the group of each image, such as its video; images of a group are never split
            between training and validation. Empty if each image is on its own.
        sizes: (height, width) of each image, where known.
        in_memory: whether loading an image only copies it.
        max_broken_fraction: the share of images that may fail to load.
        broken: (name, reason) of the files that were dropped.
        block: for images that are read in order, the number of images that are read together.
    """

    description: str
    reader: Reader
    class_names: list[str]
    labels: Any = ()
    groups: Sequence[str] = ()
    sizes: list[tuple[int, int]] | None = None
    in_memory: bool = False
    max_broken_fraction: float = 0.0
    broken: Sequence[tuple[str, str]] = ()
    block: int | None = None

    def __len__(self) -> int: ...

    def load(self, index: int, least_side: int | None = None) -> AnyImage:
        """Decodes an image; raises `BrokenImageError`.

        With a `least_side`, the image may be smaller than in its file, but no side smaller than
        that.
        """

    def label(self, index: int) -> int | None:
        """Returns the class of an image, without loading it; None without classes."""
        return int(self.labels[index]) if self.class_names else None

    def name(self, index: int) -> str:
        """Returns a name that is unique within the list."""

    def fingerprint(self) -> str:
        """Returns a digest of everything that decides what `load` and `label` return."""


class Part(NamedTuple):
    """The images for training, validation or testing: all of a list, or some of it.

    Attributes:
        images: the list.
        conditions: the conditions of pairs, in the order of `images`.
        indices: the numbers of the images, in this order; None for all.
    """

    images: ImageList
    conditions: ImageList | None = None
    indices: list[int] | None = None


@contextmanager
def naming(image: str) -> Iterator[None]:
    """Puts the name of an image or data set in front of the message of a `UserError`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{image}: {error}") from error


class ImageDataset(Dataset[dict[str, Any]]):
    """Images under a transform.

    `dataset[index, draw]` is a training item, augmented with random numbers of (seed, draw) alone.
    `dataset[index]` is the same item without augmentation. An item is a dictionary: `images` is a
    float32 tensor `(c H W)`, a picture in [-1, 1] or a one-hot label map of 0 and 1. `labels` is
    its class number, if there are classes. `conditions`, for pairs, is the tensor of the condition
    in the same view.

    An image that cannot be loaded is replaced by the next one of its class, in a stream by one of
    its block. The log reports it once.

    Args:
        part: the images.
        transform: gives them all one size, and augments them.
        seed: seed of the augmentation, not negative.

    Raises:
        UserError: if images have sizes that the transform cannot use; in `__getitem__`, if more
            images than the list's `max_broken_fraction` cannot be loaded.
    """

    def __init__(self, part: Part, transform: ImageTransform, *, seed: int) -> None:
        self.images, self.conditions, indices = part
        self.transform = transform
        self.seed = seed
        self.in_memory = self.images.in_memory
        self.block = self.images.block
        self._indices = np.arange(len(self.images)) if indices is None else np.asarray(indices)
        # in shared memory, so that all loader processes know what one of them finds broken
        self._replaced = torch.zeros(len(self._indices), dtype=torch.bool).share_memory_()
        self.num_magnified = self._check_sizes()

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        index, draw = key if isinstance(key, tuple) else (key, None)
        rng = None if draw is None else np.random.default_rng((self.seed, draw))
        least_side = self.transform.least_side
        if rng is None or self.conditions is not None:  # conditions must fit pixel by pixel
            least_side = None
        image, condition, index = self._load(index, least_side)
        item: dict[str, Any] = {}
        with naming(self.name(index)):
            if condition is None or self.conditions is None:
                image = self.transform(image, rng)
            else:
                image, condition = self.transform.pair(image, condition, rng)
                item["conditions"] = self.conditions.reader.tensor(condition)
        item["images"] = self.images.reader.tensor(image)
        if (label := self.label(index)) is not None:
            item["labels"] = label
        return item

    @property
    def replaced_names(self) -> list[str]:
        """Names of images found to be broken while loading, in any worker."""
        return [self.name(i) for i in self._replaced.nonzero().flatten().tolist()]

    def name(self, index: int) -> str:
        """Returns the name of an item."""
        return self.images.name(int(self._indices[index]))

    def label(self, index: int) -> int | None:
        """Returns the class of an item without loading its image; None without classes."""
        return self.images.label(int(self._indices[index]))

    def fingerprint(self) -> str:
        """Returns a digest of the items: files, labels, their choice and order, transform.

        It contains neither the seed nor the place of the files.
        """
        digest = hashlib.sha256(self.images.fingerprint().encode())
        if self.conditions is not None:
            digest.update(self.conditions.fingerprint().encode())
        digest.update(self._indices.astype(np.int64).tobytes())
        digest.update(repr(self.transform).encode())
        return digest.hexdigest()

    def _load(self, index: int, least_side: int | None) -> tuple[AnyImage, AnyImage | None, int]:
        """Loads an item's image and condition, or another item's if that one is broken."""
        for candidate in self._with_stand_ins(index):
            if self._replaced[candidate]:
                continue
            number = int(self._indices[candidate])
            try:
                condition = None if self.conditions is None else self.conditions.load(number)
                return self.images.load(number, least_side), condition, candidate
            except BrokenImageError as error:
                self._note_broken(candidate, error)
        raise UserError(f"{self.images.description}: none of its {len(self)} images can be loaded.")

    def _with_stand_ins(self, index: int) -> Iterator[int]:
        start, stop = 0, len(self)
        if self.block is not None:  # other blocks of a stream have to be read first
            start = index - index % self.block
            stop = min(start + self.block, stop)
        label = self.label(index)
        for same_class in (True, False):
            for candidate in chain(range(index, stop), range(start, index)):
                if (self.label(candidate) == label) is same_class:
                    yield candidate
        yield from chain(range(stop, len(self)), range(start))

    def _note_broken(self, index: int, error: BrokenImageError) -> None:
        self._replaced[index] = True
        num_broken, limit = int(self._replaced.sum()), self.images.max_broken_fraction
        what = "is broken" if self.conditions is None else "or its condition is broken"
        problem = f"{self.images.description}: {self.name(index)} {what} ({error})"
        if num_broken > limit * len(self):
            raise UserError(
                f"{problem}, as are {num_broken - 1} others that passed the check at the start "
                f"(max_broken_fraction is {limit:g}). Remove them; check=full finds them."
            )
        log.warning("%s and was replaced by another image; %d so far", problem, num_broken)

    def _check_sizes(self) -> int:
        """Checks all known sizes; returns how many images are smaller than the result."""
        sizes = self.images.sizes
        if sizes is None:
            return 0
        first: dict[tuple[int, int], int] = {}  # image of each size
        for index in self._indices:
            first.setdefault(sizes[index], int(index))
        for size, index in first.items():
            with naming(self.images.name(index)):
                self.transform.check_size(size)
        magnified = {size for size in first if self.transform.magnifies(size)}
        return sum(sizes[index] in magnified for index in self._indices)
