"""Writing a token cache so that an interruption costs little."""

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taming.data.tokens import LABELS, META_FILE, CacheDescription

__all__ = ["TokenWriter"]

PROGRESS_FILE = "progress.json"

log = logging.getLogger(__name__)


class TokenWriter:
    """Fills a token cache in order and keeps a record of how far it is.

    Item n is view n // num_images of image n % num_images: first every image unaugmented, then view
    after view with random numbers of its own. A writer on a directory that holds the unfinished
    cache of the same description goes on after the last recorded item.

    Args:
        directory: where the unfinished cache is; made if need be. No other process may use it.
        description: what it is a cache of.
        with_labels: whether the images have classes.

    Attributes:
        done: number of items written.
        replaced: names of the images for which others stand, as recorded.

    Raises:
        OSError: if the disk has no room for it.
    """

    def __init__(
        self, directory: Path, description: CacheDescription, *, with_labels: bool
    ) -> None:
        self.directory = directory
        self.description = description
        self.total = description.num_images * description.num_views
        self._files: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            name: (grid.dtype, description.shape(name)) for name, grid in description.grids.items()
        }
        if with_labels:
            self._files[LABELS] = np.dtype(np.int64), (description.num_images,)
        try:
            self.done, self.replaced, self._arrays = self._begun()
        except (OSError, ValueError, EOFError, KeyError, TypeError):  # none, or none of any use
            shutil.rmtree(directory, ignore_errors=True)
            try:
                self.done, self.replaced, self._arrays = 0, set[str](), self._new()
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

    def write(self, codes: Mapping[str, np.ndarray], labels: np.ndarray | None = None) -> None:
        """Writes the next items: integers `(b h w)` by name, as in `CacheDescription.grids`.

        `labels` `(b,)` are their classes. An image has that of its first view: where a later one is
        of another class, because it shows another image, the first view stands for it.
        """
        count = len(codes["indices"])
        views, images = np.divmod(
            np.arange(self.done, self.done + count), self.description.num_images
        )
        grids = {name: self._arrays[name] for name in self.description.grids}
        for name, array in grids.items():
            array[images, views] = codes[name]
        if labels is not None:
            known, first = self._arrays[LABELS], views == 0
            known[images[first]] = labels[first]
            others = labels != known[images]
            for array in grids.values():
                array[images[others], views[others]] = array[images[others], 0]
        self.done += count

    def record(self, replaced: Iterable[str] = ()) -> None:
        """Puts what is written on the disk, and then how much that is.

        `replaced` are the names of the images for which others were written so far; those that an
        earlier process recorded stay.
        """
        self.replaced.update(replaced)
        for array in self._arrays.values():
            array.flush()
        progress = {"done": self.done, **self._meta()}
        unfinished = self.directory / f"{PROGRESS_FILE}.unfinished"
        unfinished.write_text(json.dumps(progress))
        unfinished.replace(self.directory / PROGRESS_FILE)

    def finish(self, directory: Path) -> None:
        """Makes it a valid cache, and moves it to `directory`."""
        assert self.done == self.total
        self.record()
        meta = json.dumps(self._meta(), indent=2)
        (self.directory / META_FILE).write_text(f"{meta}\n")
        self.directory.rename(directory)
        (directory / PROGRESS_FILE).unlink()

    def _meta(self) -> dict[str, Any]:
        return {**self.description.plain(), "replaced": sorted(self.replaced)}

    def _begun(self) -> tuple[int, set[str], dict[str, np.memmap[Any, Any]]]:
        """What an earlier process has recorded."""
        progress = json.loads((self.directory / PROGRESS_FILE).read_text())
        done = progress.pop("done")
        replaced = set(progress.pop("replaced", []))
        if progress != self.description.plain() or not 0 <= done <= self.total:
            raise ValueError
        arrays = {}
        for name, file in self._files.items():
            array = np.lib.format.open_memmap(self._path(name), "r+")
            if (array.dtype, array.shape) != file:
                raise ValueError
            arrays[name] = array
        return done, replaced, arrays

    def _new(self) -> dict[str, np.memmap[Any, Any]]:
        self.directory.mkdir(parents=True)
        arrays = {}
        for name, (dtype, shape) in self._files.items():
            path = self._path(name)
            arrays[name] = np.lib.format.open_memmap(path, "w+", dtype=dtype, shape=shape)
            if hasattr(os, "posix_fallocate"):  # a full disk: an OSError now, not a bus error later
                with path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return arrays

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.npy"
