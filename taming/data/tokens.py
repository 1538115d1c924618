"""Token caches: images, and their conditions, as code indices in memory-mapped files."""

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from taming.runtime.errors import UserError

__all__ = ["CacheDescription", "TokenDataset", "TokenGrid"]

META_FILE = "meta.json"
FORMAT = 2  # with checksums
DRAWS_IN_BLOCK = 1024
BLOCK = 2**24  # bytes under one checksum
BLOCKS_CHECKED = 64  # of a file when it is opened: 1 GiB, about a second


@dataclass(frozen=True)
class TokenGrid:
    """Size and origin of the codes that a tokenizer makes of an image."""

    tokenizer: str  # fingerprint of its configuration and weights
    grid_size: tuple[int, int]  # (height, width) in codes
    codebook_size: int


@dataclass(frozen=True)
class CacheDescription:
    """Everything that the content of a token cache depends on."""

    data: str  # fingerprint of the images, their conditions, split and transform
    seed: int  # of the augmentation; 0 where nothing is augmented, with one view
    num_images: int
    # encodings of each image: the first unaugmented, the others each with its own crop and flip,
    # which is also that of its condition
    num_views: int
    indices: TokenGrid
    condition_indices: TokenGrid | None = None  # None without conditions
    num_classes: int | None = None  # None without classes

    @property
    def arrays(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of each file, by the name of an item's entry; `.npy` is added to it.

        The type is the smallest unsigned one that holds every number. The shape is images × views
        × height × width, or images × views for labels.
        """
        views = self.num_images, self.num_views
        found = {}
        for name in ("indices", "condition_indices"):
            if (grid := getattr(self, name)) is not None:
                dtype = np.min_scalar_type(grid.codebook_size - 1)
                found[name] = dtype, (*views, *grid.grid_size)
        if self.num_classes is not None:
            found["labels"] = np.min_scalar_type(self.num_classes - 1), views
        return found

    @property
    def num_items(self) -> int:
        """Number of encodings: views of all images."""
        return self.num_images * self.num_views

    def key(self, item: int) -> int | tuple[int, int]:
        """Returns an item's key in `ImageDataset`: image after image, each with all its views."""
        image, view = divmod(item, self.num_views)
        return image if view == 0 else (image, view * self.num_images + image)

    def plain(self) -> dict[str, Any]:
        """Returns the description as `meta.json` holds it."""
        return json.loads(json.dumps({"format": FORMAT, **asdict(self)}))


class TokenDataset(Dataset[dict[str, Any]]):
    """A token cache as a map-style data set.

    `dataset[keys]` is a batch: `indices` int64 `(b h w)`; with conditions, `condition_indices`
    int64 `(b h' w')`; with classes, `labels` int64 `(b,)`. Keys are (index, draw) for one of each
    image's views, chosen by (seed, draw) alone, or indices for the unaugmented ones.

    Opening one checks up to 1 GiB of each file against its checksums, chosen at random; `check` all
    of it.

    Args:
        directory: where the cache is.
        description: what it must be a cache of.

    Attributes:
        arrays: images × views × …, by the name of the item's entry.
        replaced_names: names of the images that could not be read when they were encoded; others
            stand in for them.

    Raises:
        UserError: if the cache is damaged, or is one of something else.
    """

    in_memory = True  # as far as processes that load ahead are concerned
    block = None  # items are read in any order

    def __init__(self, directory: Path, description: CacheDescription) -> None:
        try:
            meta = json.loads((directory / META_FILE).read_text())
            self.arrays = {
                name: np.load(directory / f"{name}.npy", "r") for name in description.arrays
            }
            self.replaced_names = [str(name) for name in meta.pop("replaced")]
            checksums: dict[str, list[int]] = meta.pop("checksums")
            self._checksums = {
                name: [int(one) for one in every] for name, every in checksums.items()
            }
            shapes = {name: (array.dtype, array.shape) for name, array in self.arrays.items()}
            if meta != description.plain() or shapes != description.arrays:
                raise ValueError("it is of other data than its name says")
        except Exception as error:  # a damaged header makes NumPy raise nearly anything
            raise self._damaged(directory, f"{error}") from error
        self.directory, self.description = directory, description
        self.check(BLOCKS_CHECKED)

    def check(self, num_blocks: int | None = None) -> None:
        """Compares the files with their checksums: all of each, or so many blocks of 16 MiB.

        Raises:
            UserError: if the cache is damaged.
        """
        for name, array in self.arrays.items():
            numbers: Sequence[int] = range(num_blocks_of(array))
            if num_blocks is not None and num_blocks < len(numbers):
                numbers = SystemRandom().sample(numbers, num_blocks)  # whatever the seed
            known = self._checksums.get(name, [])
            if len(known) != num_blocks_of(array) or any(
                checksum(array, number) != known[number] for number in numbers
            ):
                raise self._damaged(self.directory, f"{name}.npy has changed")

    @staticmethod
    def _damaged(directory: Path, why: str) -> UserError:
        return UserError(
            f"the token cache {directory} is damaged ({why}): delete it to make it anew."
        )

    def __len__(self) -> int:
        return self.description.num_images

    def __getitem__(self, keys: Sequence[int | tuple[int, int]]) -> dict[str, torch.Tensor]:
        if isinstance(keys[0], tuple):
            indices, draws = np.array(keys).T
            views = self._views(draws)
        else:
            indices, views = np.array(keys), np.zeros(len(keys), dtype=np.int64)
        return {
            name: torch.from_numpy(array[indices, views].astype(np.int64))
            for name, array in self.arrays.items()
        }

    def _views(self, draws: np.ndarray) -> np.ndarray:
        """Chooses a view for each draw; one generator does for a block of draws."""
        blocks, places = np.divmod(draws, DRAWS_IN_BLOCK)
        views = np.empty_like(draws)
        for block in np.unique(blocks):
            rng = np.random.default_rng((self.description.seed, int(block)))
            chosen = rng.integers(self.description.num_views, size=DRAWS_IN_BLOCK)
            views[blocks == block] = chosen[places[blocks == block]]
        return views

    # a loader then takes whole batches
    __getitems__ = __getitem__

    @staticmethod
    def collate(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns a batch as it is."""
        return batch


def num_blocks_of(array: np.ndarray) -> int:
    """Returns how many checksums an array has."""
    return math.ceil(array.nbytes / BLOCK)


def checksum(array: np.ndarray, number: int) -> int:
    """Returns the CRC-32 of a block of an array."""
    start = number * BLOCK
    return zlib.crc32(array.reshape(-1).view(np.uint8)[start : start + BLOCK].data)
