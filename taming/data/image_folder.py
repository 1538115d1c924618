"""The images of a folder or zip archive: listed, labelled, checked."""

import hashlib
import io
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import IO, Literal

import numpy as np
from tqdm import tqdm

from taming.data.array_files import ArrayReader
from taming.data.dataset import ImageList
from taming.data.files import FileEntry, open_files
from taming.data.labels import find_groups, find_labels
from taming.data.readers import AnyImage, BrokenImageError, Reader, decoding, header_size
from taming.runtime.errors import UserError, join_names, replacing

__all__ = ["Check", "ImageFolder", "report_broken"]

Check = Literal["auto", "full", "header", "none"]
Size = tuple[int, int]  # (height, width)

MAX_BYTES = 256 << 20  # of a file, which is read whole
MANY_FILES = 2_000  # the result of a check is saved from here on
AUTO_FULL_BYTES = 2 << 30  # about half a minute of decoding on a few cores

log = logging.getLogger(__name__)


class ImageFolder(ImageList):
    """The images of a folder or `.zip` file, or a single image, as an `ImageList`.

    The constructor lists the files and finds the classes. It reads no image; `find_whole` does.
    `ImageFiles` describes the other arguments.

    Args:
        path: searched recursively, except for hidden files and `__MACOSX`.
        known_classes: for validation data, the class names of the training data.

    Raises:
        MissingPathError: if the path or a table does not exist.
        UserError: if there are no images, or the classes or groups do not fit.
    """

    def __init__(
        self,
        path: str | Path,
        reader: Reader,
        *,
        labels: str = "none",
        group: str | None = None,
        known_classes: Sequence[str] | None = None,
        subfolder: str | None = None,
        max_broken_fraction: float = 1.0,
    ) -> None:
        self.reader = reader
        self.max_broken_fraction = max_broken_fraction
        self._files = open_files(path, subfolder, reader.suffixes)
        self._entries = self._files.entries
        self.description = str(self._files.path)
        self.broken: list[tuple[str, str]] = []
        names = [entry.name for entry in self._entries]
        self.class_names, self.labels = find_labels(self._files, names, labels, known_classes)
        self.groups = find_groups(self._files, names, labels, group) if group else []

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, index: int, least_side: int | None = None) -> AnyImage:
        """Decodes an image, see `ImageList.load`; raises `BrokenImageError`.

        Raises:
            UserError: if the folder or archive no longer exists.
        """
        try:
            return self._decode(self._entries[index], least_side)
        except BrokenImageError as error:
            if self._files.exists():
                raise
            raise UserError(
                f"{self.description} is no longer there ({error}). Is its drive still mounted?"
            ) from error

    def name(self, index: int) -> str:
        """Returns the path below the folder or in the archive."""
        return self._entries[index].name

    def folders(self) -> set[str]:
        """Returns the real paths of the folders that hold the images."""
        return self._files.folders()

    def fingerprint(self) -> str:
        """Returns a digest of the names, sizes, stamps and labels of the files and their reader."""
        digest = hashlib.sha256(repr((self.reader, self.class_names)).encode())
        digest.update(self._entries.digest().encode())
        digest.update(repr(self.labels).encode())
        return digest.hexdigest()

    def select(self, indices: Sequence[int]) -> None:
        """Keeps only these images, in this order."""
        self._entries = self._entries.select(indices)
        self.labels = [self.labels[i] for i in indices]
        self.groups = [self.groups[i] for i in indices] if self.groups else []
        self.sizes = None if self.sizes is None else [self.sizes[i] for i in indices]

    def drop_broken(
        self, check: Check, first: int | None = None, scan_dir: str | Path | None = None
    ) -> None:
        """Drops broken files, which the log counts and names; see `find_whole`.

        Raises:
            UserError: if more than `max_broken_fraction` of the files are broken, or all.
        """
        whole = self.find_whole(check, first, scan_dir)
        num_broken, num_files = len(self.broken), len(self.sizes or self)
        what = f"{self.description}: {num_broken} of {num_files} images are broken"
        report_broken(what, self.broken, num_broken / num_files, self.max_broken_fraction)
        self.select(whole)

    def find_whole(
        self, check: Check, first: int | None = None, scan_dir: str | Path | None = None
    ) -> Sequence[int]:
        """Reads every file, lists the broken ones in `broken` and returns the numbers of the rest.

        `ImageDataset` replaces and reports a file that turns out to be broken later.

        Args:
            check: `full` decodes each file. `header` reads its first bytes, and the checksums of a
                PNG; a cut-off JPEG passes. `auto` is `full` up to 2 GiB of files and `header`
                above. `none` does nothing.
            first: stop after this many whole files; None for all.
            scan_dir: directory in which to save the sizes of thousands of whole files for the next
                start; None to save nothing.
        """
        if check == "none":
            return range(len(self))
        small = self._entries.total_size <= AUTO_FULL_BYTES
        full = check == "full" or (check == "auto" and small)
        scan = None
        if scan_dir is not None and len(self) >= MANY_FILES:
            terms = f"{self.reader!r} {full} {self._entries.digest()}".encode()
            scan = Path(scan_dir).expanduser() / f"{hashlib.sha256(terms).hexdigest()[:16]}.npz"
        saved_sizes = _read_scan(scan, len(self))
        results = self._check_files(full, first, saved_sizes)
        self.sizes = [(0, 0) if isinstance(result, str) else result for result in results]
        if scan is not None and None in saved_sizes:
            _write_scan(scan, self.sizes)
        self.broken = [(self.name(i), why) for i, why in enumerate(results) if isinstance(why, str)]
        return [i for i, size in enumerate(self.sizes) if all(size)]

    def _check_files(
        self, full: bool, first: int | None, saved_sizes: Sequence[Size | None]
    ) -> list[Size | str]:
        """Returns (height, width) of each file, or what is wrong with it."""
        results: list[Size | str] = []
        shared: dict[Size | str, Size | str] = {}  # a million images have few sizes
        num_whole = 0
        unknown = self._entries.select([i for i, size in enumerate(saved_sizes) if size is None])
        # in threads: Pillow decodes outside Python's lock
        with ThreadPool(min(8, os.cpu_count() or 1)) as pool:
            checked = iter(
                tqdm(
                    pool.imap(partial(self._size_or_reason, full=full), unknown, chunksize=16),
                    desc=f"checking {self._files.path.name}",
                    total=len(unknown),
                    unit="image",
                    delay=1,  # seconds: small sets need no bar
                )
            )
            for size in saved_sizes:
                result = next(checked) if size is None else size
                results.append(shared.setdefault(result, result))
                num_whole += not isinstance(result, str)
                if num_whole == first:
                    break
        return results

    def _size_or_reason(self, entry: FileEntry, full: bool) -> Size | str:
        try:
            if full or isinstance(self.reader, ArrayReader):  # Pillow cannot read their headers
                image = self._decode(entry)
                return image.height, image.width
            with decoding(), self._open(entry) as file:
                return header_size(file)
        except BrokenImageError as error:
            return str(error)

    def _open(self, entry: FileEntry) -> IO[bytes]:
        if entry.size > MAX_BYTES:
            raise BrokenImageError(
                f"{entry.size / 2**20:,.0f} MiB, and at most {MAX_BYTES >> 20} MiB can be read"
            )
        return self._files.open(entry)

    @decoding()
    def _decode(self, entry: FileEntry, least_side: int | None = None) -> AnyImage:
        with self._open(entry) as file:
            content = io.BytesIO(file.read())
        return self.reader.read(content, f"{self.description}: {entry.name}", least_side)


def report_broken(
    what: str, broken: Sequence[tuple[str, str]], share: float, max_share: float
) -> None:
    """Logs which files are broken and dropped; raises a `UserError` if all or too many are."""
    reasons = join_names([f"{name}: {why}" for name, why in broken], separator="; ")
    if share == 1 or share > max_share:
        raise UserError(
            f"{what} ({reasons}): repair or remove them (max_broken_fraction is {max_share:g})."
        )
    if broken:
        log.warning("%s and dropped (%s)", what, reasons)


def _read_scan(path: Path | None, count: int) -> list[Size | None]:
    """Returns the saved (height, width) of the whole files; None for other files."""
    if path is None:
        return [None] * count
    # a damaged file raises nearly anything
    with suppress(Exception), path.open("rb") as file, np.load(file) as scan:
        return [tuple(size) if all(size) else None for size in scan["sizes"].tolist()]
    return [None] * count


def _write_scan(path: Path, sizes: list[Size]) -> None:
    """Saves the sizes if possible; they only save time."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, "wb") as file:
            np.savez_compressed(file, sizes=np.array(sizes, np.int32))
