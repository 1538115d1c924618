"""Writes a token cache in shards, from any number of processes and machines."""

import errno
import json
import logging
import math
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from taming.data.tokens import META_FILE, CacheDescription, block_checksums
from taming.runtime.errors import replacing

__all__ = ["TokenWriter"]

SHARD_ITEMS = 512  # at least
MAX_SHARDS = 4096

log = logging.getLogger(__name__)


class TokenWriter:
    """Writes a token cache in shards, which any number of processes and machines share.

    A shard holds consecutive items of the cache. It gets its name once it is complete, and a lock
    keeps other processes from writing it until then. A killed process loses the shards that it has
    claimed and not written: one, or a few if other processes load images ahead.

    Args:
        directory: the directory of the cache; until it is complete, shards are in
            `<directory>.unfinished`.
        description: the content of the cache.

    Raises:
        OSError: if the disk has no room for it, or a link is in its place.
    """

    def __init__(self, directory: Path, description: CacheDescription) -> None:
        self.directory, self.description = directory, description
        self._unfinished = directory.with_name(f"{directory.name}.unfinished")
        items = range(description.num_items)
        size = max(SHARD_ITEMS, math.ceil(len(items) / MAX_SHARDS))
        self._shards = [items[first : first + size] for first in range(0, len(items), size)]
        self._claimed: deque[tuple[range, FileLock]] = deque()
        self._batches: list[Mapping[str, np.ndarray]] = []  # of the first claimed shard
        self._make_room()
        if self.done:
            log.info("resuming %s at image %d of %d", directory, self.done, len(items))

    @property
    def done(self) -> int:
        """The number of items written so far by all processes."""
        pending = sum(len(batch["indices"]) for batch in self._batches)
        return self.description.num_items - sum(map(len, self._missing())) + pending

    def claim(self, batch_size: int) -> Iterator[list[int | tuple[int, int]]]:
        """Yields the keys of all items that no process has written or is writing, in batches.

        Pass their tokens to `write` in the same order.
        """
        for shard in self._missing():
            lock = self._lock(shard)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            if self._path(shard).exists() or self.directory.exists():  # another process was faster
                lock.release()
                continue
            self._claimed.append((shard, lock))
            for first in range(0, len(shard), batch_size):
                yield [self.description.key(item) for item in shard[first : first + batch_size]]

    def write(self, batch: Mapping[str, np.ndarray], replaced_names: Sequence[str] = ()) -> None:
        """Adds the tokens of the next claimed batch, and writes its shard once that is complete.

        Args:
            batch: integers `(b …)` by name, as in `CacheDescription.arrays`.
            replaced_names: the images that have been replaced by others so far.
        """
        self._batches.append(batch)
        shard, lock = self._claimed[0]
        if sum(len(batch["indices"]) for batch in self._batches) < len(shard):
            return
        arrays: dict[str, Any] = {
            name: np.concatenate([batch[name] for batch in self._batches]).astype(dtype)
            for name, (dtype, _) in self.description.arrays.items()
        }
        with replacing(self._path(shard), "wb") as file:  # a zip file, with checksums
            np.savez(file, replaced=np.array(replaced_names, dtype=str), **arrays)
        self._batches = []
        self._claimed.popleft()
        lock.release()

    def finish(self) -> bool:
        """Waits for the shards of other processes and joins all; False if some are missing.

        A damaged shard is deleted and then missing.
        """
        missing = [] if self.directory.exists() else self._missing()
        if missing:
            log.info("waiting for other processes that work on %s", self.directory)
        for shard in missing:
            with self._lock(shard):
                pass
        with self._lock():
            if not self.directory.exists() and not self._missing():
                self._join()
            if finished := self.directory.exists():
                shutil.rmtree(self._unfinished, ignore_errors=True)
                for path in self.directory.parent.glob(f".{self.directory.name}.*.lock"):
                    path.unlink(missing_ok=True)
        return finished

    def close(self) -> None:
        """Releases the shards that are claimed and not written."""
        for _, lock in self._claimed:
            lock.release()

    def _join(self) -> None:
        """Writes the arrays and meta.json, unless a shard is damaged."""
        complete = self._unfinished / "complete"
        complete.mkdir(exist_ok=True)
        replaced: set[str] = set()
        with ExitStack() as stack:
            files = {}
            for name, (dtype, shape) in self.description.arrays.items():
                file = files[name] = stack.enter_context(replacing(complete / f"{name}.npy", "wb"))
                descr = np.lib.format.dtype_to_descr(dtype)
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            for shard in self._shards:
                try:
                    content = self._read(shard)
                except Exception as error:  # a damaged zip file makes NumPy raise nearly anything
                    log.warning("%s is damaged (%s). Writing it again.", self._path(shard), error)
                    self._path(shard).unlink()
                    return
                replaced.update(content["replaced"].tolist())
                for name, file in files.items():
                    file.write(content[name].tobytes())
        checksums = {
            name: block_checksums(np.load(complete / f"{name}.npy", "r")) for name in files
        }
        meta = {**self.description.plain(), "replaced": sorted(replaced), "checksums": checksums}
        (complete / META_FILE).write_text(json.dumps(meta, indent=2) + "\n")
        complete.rename(self.directory)

    def _read(self, shard: range) -> dict[str, np.ndarray]:
        with self._path(shard).open("rb") as file, np.load(file) as content:
            if content.zip.testzip() is not None:
                raise ValueError("its checksum differs")
            arrays = {name: content[name] for name in ("replaced", *self.description.arrays)}
        if any(len(arrays[name]) != len(shard) for name in self.description.arrays):
            raise ValueError("it has another number of items")
        return arrays

    def _make_room(self) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        arrays = self.description.arrays.values()
        size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays)
        # for the shards and for the joined arrays
        needed = size * (2 - self.done / self.description.num_items)
        if shutil.disk_usage(self.directory.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._unfinished.is_symlink():  # whoever shares the directory could have made it
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self._unfinished))
        self._unfinished.mkdir(exist_ok=True)

    def _missing(self) -> list[range]:
        paths: set[Path] = set()
        with suppress(FileNotFoundError):  # not started, or finished by another process
            paths.update(self._unfinished.iterdir())
        return [shard for shard in self._shards if self._path(shard) not in paths]

    def _path(self, shard: range) -> Path:
        return self._unfinished / f"{shard.start}.npz"

    def _lock(self, shard: range | None = None) -> FileLock:
        """Returns the lock of a shard, or of all; it is outside the directory, which is removed."""
        name = self.directory.name if shard is None else f"{self.directory.name}.{shard.start}"
        return FileLock(self.directory.with_name(f".{name}.lock"))
