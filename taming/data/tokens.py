"""Token caches: a data set's images as code indices, memory-mapped files on disk."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from taming.data.loading import EndlessDataModule
from taming.errors import UserError

__all__ = ["CacheDescription", "TokenDataModule", "TokenDataset"]

META_FILE, INDICES_FILE, LABELS_FILE = "meta.json", "indices.npy", "labels.npy"


@dataclass(frozen=True)
class CacheDescription:
    """What a token cache is of; a cache is valid for exactly this description.

    Attributes:
        tokenizer: fingerprint of the tokenizer's configuration and weights.
        data: fingerprint of the images, their split and their transform.
        seed: of the augmentation.
        num_images: number of images.
        num_views: encodings of each image: the first unaugmented, the others each with its own crop
            and flip.
        grid_size: (height, width) of the code grid.
        codebook_size: number of codes.
    """

    tokenizer: str
    data: str
    seed: int
    num_images: int
    num_views: int
    grid_size: tuple[int, int]
    codebook_size: int

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest integer type that holds every index."""
        return np.uint16 if self.codebook_size <= 2**16 else np.uint32

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the index file: images, views, height, width."""
        return (self.num_images, self.num_views, *self.grid_size)

    def plain(self) -> dict[str, Any]:
        """As `meta.json` holds it."""
        return {**asdict(self), "grid_size": list(self.grid_size)}


class TokenDataset(Dataset[dict[str, Any]]):
    """A token cache as a map-style data set.

    An item is a dictionary: `indices` is int64 `(h w)`, and `labels` the class number, missing
    without classes. `dataset[index, draw]` is one of the image's views, chosen by (seed, draw)
    alone; `dataset[index]` is the unaugmented one.

    Args:
        directory: the cache's directory.
        expected: what it must be a cache of.

    Raises:
        UserError: if it is a cache of something else, or damaged.
    """

    def __init__(self, directory: Path, expected: CacheDescription) -> None:
        try:
            found = json.loads((directory / META_FILE).read_text())
            self.indices = np.load(directory / INDICES_FILE, mmap_mode="r")
            labels_file = directory / LABELS_FILE
            self.labels = np.load(labels_file) if labels_file.exists() else None
        except (OSError, ValueError) as error:
            raise UserError(
                f"the token cache {directory} is damaged ({error}). Delete it: it will be made "
                "anew."
            ) from error
        differing = [name for name, value in expected.plain().items() if found.get(name) != value]
        if differing or self.indices.shape != expected.shape:
            raise UserError(
                f"the token cache {directory} is stale: it was made from another "
                f"{', '.join(differing) or 'number of images'}. Delete it, or give another "
                "cache_dir."
            )
        self.seed = expected.seed

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        index, draw = key if isinstance(key, tuple) else (key, None)
        view = 0
        if draw is not None:
            view = int(np.random.default_rng((self.seed, draw)).integers(self.indices.shape[1]))
        item: dict[str, Any] = {
            "indices": torch.from_numpy(self.indices[index, view].astype(np.int64))
        }
        return item if self.labels is None else {**item, "labels": int(self.labels[index])}

    @staticmethod
    def create(
        directory: Path, description: CacheDescription, labels: Sequence[int] | None
    ) -> np.memmap[Any, Any]:
        """Begins a cache in an empty directory and returns its indices to fill, `(n views h w)`.

        `finish` makes it valid. Raises `OSError` if the disk has no room for it.
        """
        if labels is not None:
            np.save(directory / LABELS_FILE, np.asarray(labels, dtype=np.int64))
        path = directory / INDICES_FILE
        indices = np.lib.format.open_memmap(
            path, "w+", dtype=description.dtype, shape=description.shape
        )
        if hasattr(os, "posix_fallocate"):  # a full disk is an OSError now, not a bus error later
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return indices

    @staticmethod
    def finish(directory: Path, description: CacheDescription) -> None:
        """Writes `meta.json`, last."""
        (directory / META_FILE).write_text(json.dumps(description.plain(), indent=2) + "\n")


class TokenDataModule(EndlessDataModule):
    """Token caches for training and validation.

    A batch is a dictionary: `indices` int64 `(b h w)`, and, with classes, `labels` int64 `(b,)`.

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
