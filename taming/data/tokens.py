"""Token caches: images, and their conditions, as code indices in memory-mapped files."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from taming.data.loading import EndlessDataModule
from taming.errors import UserError

__all__ = ["CacheDescription", "TokenDataModule", "TokenDataset", "TokenGrid"]

META_FILE, LABELS = "meta.json", "labels"


@dataclass(frozen=True)
class TokenGrid:
    """What one tokenizer makes of an image.

    Attributes:
        tokenizer: fingerprint of the tokenizer's configuration and weights.
        grid_size: (height, width) of the code grid.
        codebook_size: number of codes.
    """

    tokenizer: str
    grid_size: tuple[int, int]
    codebook_size: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest integer type that holds every index: unsigned, 8 to 32 bits."""
        return np.min_scalar_type(self.codebook_size - 1)


@dataclass(frozen=True)
class CacheDescription:
    """What a token cache is of; a cache is valid for exactly this description.

    Attributes:
        data: fingerprint of the images, their split and their transform; with conditions, theirs.
        seed: of the augmentation; 0 where nothing is augmented, with one view.
        num_images: number of images.
        num_views: encodings of each image: the first unaugmented, the others each with its own crop
            and flip, which is also that of its condition.
        indices: of the images.
        condition_indices: of the conditions; None without.
    """

    data: str
    seed: int
    num_images: int
    num_views: int
    indices: TokenGrid
    condition_indices: TokenGrid | None = None

    @property
    def grids(self) -> dict[str, TokenGrid]:
        """By the name of the item's entry and, with the ending `.npy`, of the file."""
        grids = {"indices": self.indices}
        if self.condition_indices is not None:
            grids["condition_indices"] = self.condition_indices
        return grids

    def shape(self, name: str) -> tuple[int, int, int, int]:
        """Of a file of indices: images, views, height, width."""
        return (self.num_images, self.num_views, *self.grids[name].grid_size)

    def plain(self) -> dict[str, Any]:
        """As `meta.json` holds it."""
        return json.loads(json.dumps(asdict(self)))


class TokenDataset(Dataset[dict[str, Any]]):
    """A token cache as a map-style data set.

    An item is a dictionary: `indices` is int64 `(h w)`; `condition_indices` int64 `(h' w')`, where
    there are conditions; `labels` the class number, missing without classes. `dataset[index, draw]`
    is one of the image's views, chosen by (seed, draw) alone; `dataset[index]` is the unaugmented
    one.

    Args:
        directory: the cache's directory.
        expected: what it must be a cache of.

    Attributes:
        directory: as given.
        arrays: of indices, images × views × height × width, by the name of the item's entry.
        labels: of the images; None without classes.
        replaced: names of the images that could not be read when they were encoded, and for which
            others stand.

    Raises:
        UserError: if it is a cache of something else, or damaged.
    """

    def __init__(self, directory: Path, expected: CacheDescription) -> None:
        try:
            found = json.loads((directory / META_FILE).read_text())
            self.arrays = {
                name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in expected.grids
            }
            labels_file = directory / f"{LABELS}.npy"
            self.labels = np.load(labels_file) if labels_file.exists() else None
        except (OSError, ValueError, EOFError) as error:
            raise UserError(
                f"the token cache {directory} is damaged ({error}). Delete it: it will be made "
                "anew."
            ) from error
        differing = [name for name, value in expected.plain().items() if found.get(name) != value]
        differing += [
            f"shape of {name}"
            for name, array in self.arrays.items()
            if array.shape != expected.shape(name)
        ]
        if differing:
            raise UserError(
                f"the token cache {directory} is stale: it was made from another "
                f"{', '.join(differing)}. Delete it, or give another cache_dir."
            )
        self.directory = directory
        self.replaced: list[str] = found.get("replaced", [])
        self.seed = expected.seed
        self.num_views = expected.num_views

    def __len__(self) -> int:
        return len(self.arrays["indices"])

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        index, draw = key if isinstance(key, tuple) else (key, None)
        view = 0
        if draw is not None:
            view = int(np.random.default_rng((self.seed, draw)).integers(self.num_views))
        item: dict[str, Any] = {
            name: torch.from_numpy(array[index, view].astype(np.int64))
            for name, array in self.arrays.items()
        }
        return item if self.labels is None else {**item, "labels": int(self.labels[index])}


class TokenDataModule(EndlessDataModule):
    """Token caches for training and validation.

    A batch is a dictionary: `indices` int64 `(b h w)`; with conditions, `condition_indices` int64
    `(b h' w')`; with classes, `labels` int64 `(b,)`.

    Args:
        train: the training images' cache.
        val: the validation images' cache.
        batch_size, val_batch_size, seed: see `EndlessDataModule`.
    """

    def __init__(
        self,
        train: TokenDataset,
        val: TokenDataset,
        *,
        batch_size: int,
        val_batch_size: int,
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, val_batch_size=val_batch_size, seed=seed)
        self._datasets = train, val

    @property
    def train_dataset(self) -> TokenDataset:
        """The training images' tokens."""
        return self._datasets[0]

    @property
    def val_dataset(self) -> TokenDataset:
        """The validation images' tokens."""
        return self._datasets[1]

    def num_workers_for(self, dataset: TokenDataset) -> int:
        """None: reading a memory-mapped file costs nothing."""
        return 0
