"""Image files in tar archives, such as WebDataset's shards, read in any order."""

import io
import json
import logging
import os
import tarfile
from collections.abc import Iterator, Set
from glob import glob
from pathlib import Path
from sys import intern
from typing import IO, Self

from taming.data.files import FileEntry, FileList, suffix_of
from taming.runtime.errors import MissingPathError, UserError, join_names

__all__ = ["Archive", "TarFiles", "files_in", "find_shards", "sample_name"]

log = logging.getLogger(__name__)

LABEL_SUFFIXES = (".cls", ".json")
MAX_LABEL = 1 << 20  # bytes read of a label file


def find_shards(path: Path) -> list[Path]:
    """Lists the tar archives that a path names: one, those in a folder, or a pattern's.

    A pattern is `shards/*.tar`, or `shards/{000..009}.tar`, of which none may be missing.

    Returns:
        The archives; none if the path names something else.
    """
    if path.is_dir():
        return sorted(found for found in path.glob("*.tar") if not found.name.startswith("."))
    if path.suffix != ".tar" or path.is_file():
        return [path] if path.suffix == ".tar" else []
    if "{" not in str(path):
        return [Path(name) for name in sorted(glob(str(path)))]  # noqa: PTH207 (any folder)
    try:
        from braceexpand import braceexpand
    except ImportError as error:
        raise UserError(
            f"{path} needs webdataset: pip install 'taming[datasets]'. Or write * for the numbers."
        ) from error
    shards = [Path(name) for name in braceexpand(str(path))]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise MissingPathError(
            f"{path}: {len(missing)} of {len(shards)} shards are missing ({join_names(missing)}). "
            "Fetch them, or name those that are there."
        )
    return shards


class TarFiles(FileList):
    """The image files in tar archives; their order in them does not matter.

    A sample is one image and, with the same name up to the first dot, perhaps its class: a number
    or name in a `.cls` file, or the `label` of a `.json` file.

    Args:
        path: what the user gave, for messages.
        suffixes: what image files end in.
        shards: the archives, not compressed.

    Raises:
        UserError: if an archive is damaged or two files have one name.
    """

    def __init__(self, path: Path, suffixes: Set[str], shards: list[Path]) -> None:
        self.shards = shards
        self._classes: dict[str, str] = {}  # by sample
        super().__init__(path, suffixes)
        self.root = shards[0].parent

    def _find(self) -> Iterator[FileEntry]:
        images: dict[str, tuple[str, Path]] = {}  # by sample
        for number, shard in enumerate(self.shards):
            stamp = shard.stat().st_mtime_ns
            for name, offset, size, label in _members(shard):
                sample = sample_name(name)
                if label is not None:
                    self._classes.setdefault(sample, label)
                    continue
                if name.endswith(LABEL_SUFFIXES) or not self._is_image(name):
                    continue
                if sample in images:
                    first, other = images[sample]
                    raise UserError(
                        f"{first} in {other} and {name} in {shard} are one sample, whose images "
                        "cannot be told apart: make shards with one image to a sample, of names "
                        "that differ up to the first dot."
                    )
                images[sample] = name, shard
                yield FileEntry(name, size, stamp, number, offset)

    def are_there(self) -> bool:
        """Returns whether any of the archives can be read."""
        return any(os.access(shard, os.R_OK) for shard in self.shards)

    def open(self, entry: FileEntry) -> IO[bytes]:
        """Opens one of the files for reading."""
        return io.BufferedReader(_Section(self.shards[entry.archive], entry.place, entry.size))

    def folders(self) -> set[str]:
        """Returns the real paths of the archives."""
        return {str(shard.resolve()) for shard in self.shards}

    def classes(self) -> list[str] | None:
        """Returns the class of each image; None if not all have one, or folders name numbers."""
        names = [entry.name for entry in self.entries]
        missing = [name for name in names if sample_name(name) not in self._classes]
        if missing:
            if len(missing) < len(names):
                log.info(
                    "note: %s: the classes in its .cls and .json files are not used, for %d of %d "
                    "images have none, such as %s",
                    self.path,
                    len(missing),
                    len(names),
                    missing[0],
                )
            return None
        classes = [self._classes[sample_name(name)] for name in names]
        folders = [name.rpartition("/")[0] for name in names]
        pairs = set(zip(folders, classes, strict=True))
        one_to_one = len(pairs) == len(set(folders)) == len(set(classes))
        return None if one_to_one and all(map(str.isdecimal, set(classes))) else classes


class _Section(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._start, self._size = start, size
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (self._start, self._file.tell(), self._start + self._size)[whence]
        return self._file.seek(max(self._start, base + offset)) - self._start

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = max(0, self._start + self._size - self._file.tell())
        return self._file.readinto(memoryview(buffer)[:left]) or 0

    def close(self) -> None:
        self._file.close()
        super().close()


def sample_name(name: str) -> str:
    """Returns what the files of one sample have in common: the path up to the name's first dot."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


class _Header(tarfile.TarInfo):
    """A file's header; a damaged one is an error, and so is a missing one before the end mark."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            assert isinstance(archive, Archive)
            kind, place = type(error).__name__, archive.offset
            if kind == "EOFHeaderError":
                archive.end = place + tarfile.BLOCKSIZE
                raise
            if kind == "EmptyHeaderError" and place in (0, archive.end):
                raise
            why = f"{'cut off' if kind == 'EmptyHeaderError' else error} at byte {place:,}"
            if place == 0:
                why = "not a tar archive, or a compressed one: unpack it, or read `pipe:zcat FILE`"
            raise tarfile.ReadError(why) from error


class Archive(tarfile.TarFile):
    """A tar archive, or several in a row, in which nothing damaged is taken for the end."""

    tarinfo = _Header
    ignore_zeros = True  # of an archive's end: another may follow
    end: int | None = None  # where the latest block of an end stops


def files_in(archive: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo, str | None]]:
    """Yields the name of each file in an archive, its header, and the class it names, if any."""
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # it keeps them all
        if member.size < 0:
            raise tarfile.ReadError(f"{member.name} has no size")
        name, label = member.name.removeprefix("./"), None
        if member.isreg() and suffix_of(name) is not None:  # hidden ones may lie amid a sample
            if name.endswith(LABEL_SUFFIXES):
                file = archive.extractfile(member)
                label = _label(name, file.read(MAX_LABEL)) if file else None
            yield name, member, label


def _members(shard: Path) -> Iterator[tuple[str, int, int, str | None]]:
    """Yields the name of each file in an archive, where it begins, its size, the class it names."""
    try:
        with Archive.open(shard, "r:") as archive:
            for name, member, label in files_in(archive):
                yield name, member.offset_data, member.size, label
    except Exception as error:  # a damaged archive makes tarfile raise nearly anything
        raise UserError(
            f"the shard {shard} cannot be read ({error}): fetch or make it anew."
        ) from error


def _label(name: str, content: bytes) -> str | None:
    """Returns the class that a `.cls` or `.json` file names; None if it names none."""
    text = content.decode(errors="replace").strip()
    if name.endswith(".json"):
        try:
            label = json.loads(text)["label"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        text = "" if label is None else str(label)
    return intern(text) if text else None
