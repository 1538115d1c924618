"""A folder or zip archive of images as a source: scanned, checked, labelled."""

import hashlib
import io
import logging
import os
from collections.abc import Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Literal, get_args

from PIL import Image
from tqdm import tqdm

from taming.data.files import FileEntry, describe_ignored, open_files
from taming.data.images import BrokenImageError, Channels, Color, header_size, load_image, reason
from taming.data.labels import LabelMode, folder_labels
from taming.errors import UserError

__all__ = ["Check", "ImageFolder"]

Check = Literal["auto", "full", "header", "none"]

AUTO_FULL_BYTES = 2 << 30  # about half a minute of decoding on a few cores
PROGRESS_FROM = 2000
NUM_NAMED = 10

log = logging.getLogger(__name__)


class ImageFolder:
    """The images of a folder or `.zip` file. A source for `ImageDataset`.

    Opening one lists the files and finds the classes, and reads no image; `drop_broken` does that.

    Args:
        path: the folder or archive; searched recursively, hidden files and `__MACOSX` left out.
        channels: 1 or 3; all images are converted.
        background: RGB behind transparent parts.
        labels: see `taming.data.labels.folder_labels`.
        max_broken_fraction: a larger share of broken files is an error.
        known_classes: for validation data: the training data's class names.
        key: name of the setting `path` came from, for messages.
        subfolder: take only the images below this folder of it; None for all.
        subfolder_key: name of the setting `subfolder` came from.

    Attributes:
        class_names: empty if there are no classes.
        broken: (name, reason) of every file left out.
        sizes: (height, width) of each image, once checked.

    Raises:
        MissingPathError: if there is nothing at `path`.
        UserError: if there are no images, or the classes do not fit.
    """

    in_memory = False

    def __init__(
        self,
        path: str | Path,
        *,
        channels: Channels,
        background: Color,
        labels: LabelMode,
        max_broken_fraction: float,
        known_classes: Sequence[str] | None = None,
        key: str = "data.path",
        subfolder: str | None = None,
        subfolder_key: str = "data.subfolder",
    ) -> None:
        if not 0 <= max_broken_fraction <= 1:
            raise UserError(f"max_broken_fraction is {max_broken_fraction}: give a share, 0 to 1.")
        self.channels: int = channels
        self.background = background
        self.max_broken_fraction = max_broken_fraction
        self._files = open_files(path, key, subfolder, subfolder_key)
        self._load_picture = partial(load_image, channels=channels, background=background)
        self._entries: list[FileEntry] = self._files.entries
        self.description = str(self._files.path)
        self.broken: list[tuple[str, str]] = []
        self.sizes: list[tuple[int, int]] | None = None
        names = [entry.name for entry in self._entries]
        self.class_names, self._labels = folder_labels(
            names, labels, self.description, known_classes
        )
        if self._files.ignored:
            log.info("%s: ignored %s", self.description, describe_ignored(self._files.ignored))

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, index: int) -> Image.Image:
        """Decodes an image, mode `L` or `RGB`; raises `BrokenImageError`."""
        return self._decode(self._entries[index])

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of an image by its header; raises `BrokenImageError`."""
        return self._header_size(self._entries[index])

    def label(self, index: int) -> int | None:
        """The class of an image, without reading it."""
        return self._labels[index]

    def name(self, index: int) -> str:
        """Path below the folder or in the archive."""
        return self._entries[index].name

    def fingerprint(self) -> str:
        """Hex digest of the files' names, sizes, stamps and labels, and of how they are read."""
        digest = hashlib.sha256(repr((self.channels, self.background, self.class_names)).encode())
        for entry, label in zip(self._entries, self._labels, strict=True):
            digest.update(repr((*entry, label)).encode(errors="surrogateescape"))
        return digest.hexdigest()

    def drop_broken(self, check: Check) -> None:
        """Reads every file and leaves the broken ones out; they are counted and named in the log.

        A file that turns out to be broken later is replaced and reported by `ImageDataset`.

        Args:
            check: `full` decodes each file; `header` reads its beginning (and a PNG's checksums),
                which a cut-off JPEG passes; `auto` is `full` up to 2 GiB of files and `header`
                above; `none` does nothing.

        Raises:
            UserError: if more than `max_broken_fraction` of the files are broken, or all.
        """
        if check not in get_args(Check):
            raise UserError(f"check is {check!r}: choose one of {', '.join(get_args(Check))}.")
        if check == "none":
            return
        size = sum(entry.size for entry in self._entries)
        full = check == "full" or (check == "auto" and size <= AUTO_FULL_BYTES)
        # in threads: Pillow decodes outside Python's lock
        with ThreadPool(min(8, os.cpu_count() or 1)) as pool:
            results = list(
                tqdm(
                    pool.imap(
                        partial(self._size_or_reason, full=full), self._entries, chunksize=16
                    ),
                    desc=f"checking {self._files.path.name}",
                    total=len(self._entries),
                    unit="image",
                    disable=len(self._entries) <= PROGRESS_FROM,
                )
            )
        broken = [(i, why) for i, why in enumerate(results) if isinstance(why, str)]
        self.broken = [(self.name(i), why) for i, why in broken]
        self._report_broken(len(results))
        self.keep(sorted(set(range(len(results))).difference(i for i, _ in broken)))
        self.sizes = [size for size in results if not isinstance(size, str)]

    def keep(self, indices: Sequence[int]) -> None:
        """Leaves out all images but these, which follow each other in this order."""
        self._entries = [self._entries[i] for i in indices]
        self._labels = [self._labels[i] for i in indices]
        self.sizes = None if self.sizes is None else [self.sizes[i] for i in indices]

    def _size_or_reason(self, entry: FileEntry, full: bool) -> tuple[int, int] | str:
        try:
            if not full:
                return self._header_size(entry)
            image = self._decode(entry)
        except BrokenImageError as error:
            return str(error)
        return image.height, image.width

    def _header_size(self, entry: FileEntry) -> tuple[int, int]:
        try:
            with self._files.open(entry.name) as file:  # of a large file only the beginning is read
                return header_size(file)
        except Exception as error:
            raise BrokenImageError(reason(error)) from error

    def _decode(self, entry: FileEntry) -> Image.Image:
        return self._load_picture(self._open(entry))

    def _open(self, entry: FileEntry) -> io.BytesIO:
        try:
            return io.BytesIO(self._files.read(entry.name))
        except Exception as error:  # an unreadable file, or any of a zip member's damages
            raise BrokenImageError(reason(error)) from error

    def _report_broken(self, num_files: int) -> None:
        if not self.broken:
            return
        listed = "; ".join(f"{name}: {why}" for name, why in self.broken[:NUM_NAMED])
        more = f"; and {len(self.broken) - NUM_NAMED} more" if len(self.broken) > NUM_NAMED else ""
        found = f"{self.description}: {len(self.broken)} of {num_files} images are broken"
        if len(self.broken) == num_files:
            raise UserError(f"{found}, so that none is left ({listed}{more}). Replace them.")
        if len(self.broken) > self.max_broken_fraction * num_files:
            raise UserError(
                f"{found}, more than data.max_broken_fraction={self.max_broken_fraction:g} allows "
                f"({listed}{more}). Repair or remove them, or raise data.max_broken_fraction."
            )
        log.warning("%s and left out (%s%s)", found, listed, more)
