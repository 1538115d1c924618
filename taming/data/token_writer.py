"""Writing a token cache so that an interruption costs little."""

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taming.data.tokens import META_FILE, CacheDescription

__all__ = ["TokenWriter"]

PROGRESS_FILE = "progress.json"

log = logging.getLogger(__name__)


class TokenWriter:
    """Fills a token cache in order and keeps a record of how far it is.

    Item n is view n // num_images of image n % num_images: first every image unaugmented, then view
    after view with random numbers of its own. A writer on a directory that holds an unfinished
    cache goes on after the last recorded item.

    Args:
        directory: where the unfinished cache is; made if need be. No other process may use it, and
            no cache of another description may be in it.
        description: what it is a cache of.

    Attributes:
        done: number of items written.
        replaced: names of the images for which others stand, as recorded.

    Raises:
        OSError: if the disk has no room for it.
    """

    def __init__(self, directory: Path, description: CacheDescription) -> None:
        self.directory = directory
        self.description = description
        self.total = description.num_images * description.num_views
        try:
            record = json.loads((directory / PROGRESS_FILE).read_text())
            self.done, self.replaced = int(record["done"]), set(record["replaced"])
            self._arrays = {name: self._array(name, "r+") for name in description.arrays}
        except (OSError, ValueError, EOFError, KeyError):  # none, or none of any use
            shutil.rmtree(directory, ignore_errors=True)
            try:
                directory.mkdir(parents=True)
                self.done, self.replaced = 0, set[str]()
                self._arrays = {name: self._array(name, "w+") for name in description.arrays}
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
        if self.done:
            log.info("going on with %s, at image %d of %d", directory, self.done, self.total)

    def remaining(self, batch_size: int) -> Iterator[list[int | tuple[int, int]]]:
        """Batches of `ImageDataset` keys of the items that are not written yet, in order."""
        num_images = self.description.num_images
        for start in range(self.done, self.total, batch_size):
            yield [
                item if item < num_images else (item % num_images, item)
                for item in range(start, min(start + batch_size, self.total))
            ]

    def write(self, batch: Mapping[str, np.ndarray]) -> None:
        """Writes the next items: integers `(b …)` by name, as in `CacheDescription.arrays`."""
        items = np.arange(self.done, self.done + len(batch["indices"]))
        views, images = np.divmod(items, self.description.num_images)
        for name, array in self._arrays.items():
            array[images, views] = batch[name]
        self.done += len(items)

    def record(self, replaced: Iterable[str] = ()) -> None:
        """Puts what is written on the disk, and then how much that is.

        `replaced` are the names of the images for which others were written so far; those that an
        earlier process recorded stay.
        """
        self.replaced.update(replaced)
        for array in self._arrays.values():
            array.flush()
        unfinished = self.directory / f"{PROGRESS_FILE}.unfinished"
        record = {"done": self.done, "replaced": sorted(self.replaced)}
        unfinished.write_text(json.dumps(record))
        unfinished.replace(self.directory / PROGRESS_FILE)

    def finish(self, directory: Path) -> None:
        """Makes it a valid cache, and moves it to `directory`."""
        assert self.done == self.total
        self.record()
        meta = {**self.description.plain(), "replaced": sorted(self.replaced)}
        (self.directory / META_FILE).write_text(json.dumps(meta, indent=2) + "\n")
        self.directory.rename(directory)
        (directory / PROGRESS_FILE).unlink()

    def _array(self, name: str, mode: str) -> np.memmap[Any, Any]:
        path = self.directory / f"{name}.npy"
        dtype, shape = self.description.arrays[name]
        if mode == "r+":
            return np.lib.format.open_memmap(path, mode)
        array = np.lib.format.open_memmap(path, mode, dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):  # a full disk: an OSError now, not a bus error later
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array
