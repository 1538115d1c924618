"""Token caches: the code indices of images, and of their conditions, in memory-mapped arrays."""

import json
import math
import zlib
from collections.abc import Iterable, Sequence
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
BLOCKS_CHECKED = 64  # per file when it is opened: 1 GiB, about a second


@dataclass(frozen=True)
class TokenGrid:
    """The grid of codes that a tokenizer makes of an image.

    Args:
        tokenizer: fingerprint of the configuration and weights of the tokenizer.
        grid_size: (height, width) in codes.
        codebook_size: number of codes.
    """

    tokenizer: str
    grid_size: tuple[int, int]
    codebook_size: int


@dataclass(frozen=True)
class CacheDescription:
    """Everything that the content of a token cache depends on.

    Args:
        data: fingerprint of the images, their conditions, split and transform.
        seed: seed of the augmentation; 0 for one unaugmented view.
        num_images: number of images.
        num_views: encodings of each image. The first is unaugmented. Each other view has its own
            crop and flip, which the condition shares.
        indices: the grid of an image.
        condition_indices: the grid of a condition; None without conditions.
        num_classes: number of classes; None without classes.
    """

    data: str
    seed: int
    num_images: int
    num_views: int
    indices: TokenGrid
    condition_indices: TokenGrid | None = None
    num_classes: int | None = None

    @property
    def arrays(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of each `<name>.npy`, by name.

        The type is the smallest unsigned one that holds every number. The shape is images × views
        × height × width, or images × views for labels.
        """
        views = self.num_images, self.num_views
        arrays = {}
        for name in ("indices", "condition_indices"):
            if (grid := getattr(self, name)) is not None:
                dtype = np.min_scalar_type(grid.codebook_size - 1)
                arrays[name] = dtype, (*views, *grid.grid_size)
        if self.num_classes is not None:
            arrays["labels"] = np.min_scalar_type(self.num_classes - 1), views
        return arrays

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
    int64 `(b h' w')`; with classes, `labels` int64 `(b,)`. A key (index, draw) selects one of the
    views of an image by (seed, draw) alone, and an index selects the unaugmented view.

    The constructor checks up to 1 GiB of each file, chosen at random, against the checksums.
    `check` checks whole files.

    Args:
        directory: the directory of the cache.
        description: the content that it must have.

    Attributes:
        arrays: images × views × …, by name.
        replaced_names: names of the images that could not be read when they were encoded, and were
            replaced by others.

    Raises:
        UserError: if the cache is damaged, or has another content.
    """

    in_memory = True  # loader processes would not help
    block = None  # items are read in any order

    def __init__(self, directory: Path, description: CacheDescription) -> None:
        self.directory, self.description = directory, description
        try:
            meta = json.loads((directory / META_FILE).read_text())
            self.arrays = {
                name: np.load(directory / f"{name}.npy", "r") for name in description.arrays
            }
            self.replaced_names = [str(name) for name in meta.pop("replaced")]
            self._checksums = {
                name: [int(checksum) for checksum in checksums]
                for name, checksums in meta.pop("checksums").items()
            }
            shapes = {name: (array.dtype, array.shape) for name, array in self.arrays.items()}
            if meta != description.plain() or shapes != description.arrays:
                raise ValueError("its content does not match its name")
        except Exception as error:  # a damaged header makes NumPy raise nearly anything
            raise self._damaged(str(error)) from error
        self.check(BLOCKS_CHECKED)

    def check(self, max_blocks: int | None = None) -> None:
        """Compares each file, or at most `max_blocks` blocks of 16 MiB, with its checksums.

        Raises:
            UserError: if the cache is damaged.
        """
        for name, array in self.arrays.items():
            numbers: Sequence[int] = range(_num_blocks(array))
            if max_blocks is not None and max_blocks < len(numbers):
                numbers = SystemRandom().sample(numbers, max_blocks)  # independent of the seed
            saved = self._checksums.get(name, [])
            if len(saved) != _num_blocks(array) or (
                block_checksums(array, numbers) != [saved[number] for number in numbers]
            ):
                raise self._damaged(f"{name}.npy has changed")

    def _damaged(self, why: str) -> UserError:
        return UserError(
            f"the token cache {self.directory} is damaged ({why}). Delete it; the next run makes "
            "it again."
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
        """Selects a view for each draw, with one random generator for a block of draws."""
        blocks, places = np.divmod(draws, DRAWS_IN_BLOCK)
        views = np.empty_like(draws)
        for block in np.unique(blocks):
            rng = np.random.default_rng((self.description.seed, int(block)))
            block_views = rng.integers(self.description.num_views, size=DRAWS_IN_BLOCK)
            views[blocks == block] = block_views[places[blocks == block]]
        return views

    # a loader then takes whole batches
    __getitems__ = __getitem__

    @staticmethod
    def collate(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns a batch as it is."""
        return batch


def block_checksums(array: np.ndarray, numbers: Iterable[int] | None = None) -> list[int]:
    """Returns the CRC-32 of each block of an array, or of the blocks with these numbers."""
    content = array.reshape(-1).view(np.uint8)
    return [
        zlib.crc32(content[number * BLOCK : (number + 1) * BLOCK].data)
        for number in (range(_num_blocks(array)) if numbers is None else numbers)
    ]


def _num_blocks(array: np.ndarray) -> int:
    return math.ceil(array.nbytes / BLOCK)
