"""How token caches are made: of shards, by any number of processes and machines."""

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

from taming.data.tokens import META_FILE, CacheDescription, checksum, num_blocks_of
from taming.runtime.errors import replacing

__all__ = ["TokenWriter"]

SHARD_ITEMS = 512  # at least
MAX_SHARDS = 4096

log = logging.getLogger(__name__)


class TokenWriter:
    """Makes a token cache of shards, which any number of processes and machines write.

    A shard is a stretch of the cache's items. It takes its name when it is whole; until then a lock
    keeps other processes from making it, too. A process that is killed loses those it has claimed
    and not written: one, or a few where processes load ahead.

    Args:
        directory: where the cache will be; until then shards are in `<directory>.unfinished`.
        description: what it is a cache of.

    Attributes:
        done: number of items in the shards that are there, and of those written since.

    Raises:
        OSError: if the disk has no room for it.
    """

    def __init__(self, directory: Path, description: CacheDescription) -> None:
        self.directory, self.description = directory, description
        self._unfinished = directory.with_name(f"{directory.name}.unfinished")
        items = range(description.num_items)
        size = max(SHARD_ITEMS, math.ceil(len(items) / MAX_SHARDS))
        self._shards = [items[first : first + size] for first in range(0, len(items), size)]
        self._claimed: deque[tuple[range, FileLock]] = deque()
        self._batches: list[Mapping[str, np.ndarray]] = []  # of the first claimed shard
        self.done = self._num_done()
        self._make_room()
        if self.done:
            log.info("going on with %s, at image %d of %d", directory, self.done, len(items))

    def claim(self, batch_size: int) -> Iterator[list[int | tuple[int, int]]]:
        """Yields batches of the keys of all shards that nobody has made or is making.

        Their tokens are for `write`, in the same order.
        """
        for shard in self._missing():
            lock = self._lock(shard)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            if self._path(shard).exists() or self.directory.exists():  # meanwhile
                lock.release()
                continue
            self._claimed.append((shard, lock))
            for first in range(0, len(shard), batch_size):
                yield [self.description.key(item) for item in shard[first : first + batch_size]]

    def write(self, batch: Mapping[str, np.ndarray], replaced_names: Sequence[str] = ()) -> None:
        """Takes the tokens of the next claimed batch, and writes its shard if it is whole now.

        Args:
            batch: integers `(b …)` by name, as in `CacheDescription.arrays`.
            replaced_names: images that others have stood in for so far.
        """
        self._batches.append(batch)
        self.done += len(batch["indices"])
        shard, lock = self._claimed[0]
        if sum(len(one["indices"]) for one in self._batches) < len(shard):
            return
        arrays: dict[str, Any] = {
            name: np.concatenate([one[name] for one in self._batches]).astype(dtype)
            for name, (dtype, _) in self.description.arrays.items()
        }
        with replacing(self._path(shard), "wb") as file:  # a zip, with checksums
            np.savez(file, replaced=np.array(replaced_names, dtype=str), **arrays)
        self._batches = []
        self._claimed.popleft()
        lock.release()
        self.done = self._num_done()

    def finish(self) -> bool:
        """Waits for other processes' shards, and joins all; False if some are missing.

        A damaged one is deleted, and missing then.
        """
        missing = [] if self.directory.exists() else self._missing()
        if missing:
            log.info("waiting for other processes at work on %s", self.directory)
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
        """Gives up the shards that are claimed and not written."""
        for _, lock in self._claimed:
            lock.release()

    def _join(self) -> None:
        whole = self._unfinished / "whole"
        whole.mkdir(exist_ok=True)
        replaced: set[str] = set()
        with ExitStack() as stack:
            files = {}
            for name, (dtype, shape) in self.description.arrays.items():
                file = files[name] = stack.enter_context(replacing(whole / f"{name}.npy", "wb"))
                descr = np.lib.format.dtype_to_descr(dtype)
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            for shard in self._shards:
                try:
                    with self._path(shard).open("rb") as file, np.load(file) as content:
                        if content.zip.testzip() is not None:
                            raise ValueError("its checksum differs")
                        columns = [content[name] for name in files]
                        replaced.update(content["replaced"].tolist())
                    if any(len(column) != len(shard) for column in columns):
                        raise ValueError("it has another number of items")
                except Exception as error:  # a damaged zip makes NumPy raise nearly anything
                    log.warning("%s is damaged (%s): made anew", self._path(shard), error)
                    self._path(shard).unlink()
                    return
                for whole_file, column in zip(files.values(), columns, strict=True):
                    whole_file.write(column.tobytes())
        checksums = {}
        for name in files:
            array = np.load(whole / f"{name}.npy", "r")
            checksums[name] = [checksum(array, number) for number in range(num_blocks_of(array))]
        rest = {"replaced": sorted(replaced), "checksums": checksums}
        text = json.dumps({**self.description.plain(), **rest}, indent=2)
        (whole / META_FILE).write_text(text + "\n")
        whole.rename(self.directory)

    def _make_room(self) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        arrays = self.description.arrays.values()
        size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays)
        # of the shards, and of what they are joined to
        needed = size * (2 - self.done / self.description.num_items)
        if shutil.disk_usage(self.directory.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._unfinished.mkdir(exist_ok=True)

    def _missing(self) -> list[range]:
        there: set[Path] = set()
        with suppress(FileNotFoundError):  # not begun, or finished by another process
            there.update(self._unfinished.iterdir())
        return [shard for shard in self._shards if self._path(shard) not in there]

    def _num_done(self) -> int:
        return self.description.num_items - sum(map(len, self._missing()))

    def _path(self, shard: range) -> Path:
        return self._unfinished / f"{shard.start}.npz"

    def _lock(self, shard: range | None = None) -> FileLock:
        """Returns the lock of a shard, or of all; outside the directory, which is removed."""
        name = self.directory.name if shard is None else f"{self.directory.name}.{shard.start}"
        return FileLock(self.directory.with_name(f".{name}.lock"))
