"""Image files in a folder, in a zip archive, or a single one, read the same way."""

import hashlib
import logging
import os
import re
import zipfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from copy import copy
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from taming.runtime.errors import MissingPathError, UserError, join_names

__all__ = ["SUFFIXES", "FileEntry", "FileList", "FileTable", "natural_key", "open_files"]

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})

_SHARDS = "{}: these are .tar shards. Add data=huggingface to train on them."

log = logging.getLogger(__name__)


class FileEntry(NamedTuple):
    """One image file.

    Attributes:
        name: path below the folder or in the archive, with forward slashes.
        size: bytes.
        stamp: changes with the content: modification time in a folder, CRC-32 in an archive.
        place: number of the file in its archive.
    """

    name: str
    size: int
    stamp: int
    place: int = 0


class FileTable:
    """Many files in a few arrays: a million take 100 MB, and loader processes share them."""

    def __init__(self, entries: Iterable[FileEntry]) -> None:
        names, numbers, length = bytearray(), array("q"), 0
        for name, *rest in entries:
            names += os.fsencode(name)
            numbers.extend((length, len(names), *rest))
            length = len(names)
        self._names = bytes(names)
        # start and end of a name, then the other fields of its entry
        self._numbers = np.array(numbers, dtype=np.int64).reshape(-1, 1 + len(FileEntry._fields))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> FileEntry:
        start, end, *rest = self._numbers[index].tolist()
        return FileEntry(os.fsdecode(self._names[start:end]), *rest)

    def __iter__(self) -> Iterator[FileEntry]:
        return map(self.__getitem__, range(len(self)))

    def select(self, indices: Sequence[int]) -> "FileTable":
        """Returns the files with these numbers, in this order."""
        selection = copy(self)
        selection._numbers = self._numbers[np.asarray(indices, dtype=np.int64)]
        return selection

    @property
    def total_size(self) -> int:
        """Bytes in all files together."""
        return int(self._numbers[:, 2].sum())

    def digest(self) -> str:
        """Returns a digest of names, sizes and stamps, in their order."""
        digest = hashlib.sha256(self._numbers[:, 2:4].tobytes())
        for start, end in self._numbers[:, :2].tolist():
            digest.update(self._names[start:end] + b"\0")
        return digest.hexdigest()


class FileList:
    """The image files below a folder, or a single file with any suffix, in natural order.

    Links are followed and hidden files skipped. Links to nothing are listed, because a git-annex or
    DVC checkout without its content has such links.

    Attributes:
        path: the folder, archive or file.
        root: the folder with the files or the archive.
        entries: the files.
        ignored: the number of files with other suffixes, by suffix.
    """

    def __init__(self, path: Path, suffixes: Set[str]) -> None:
        self.path, self.suffixes = path, suffixes
        self.root = path if path.is_dir() else path.parent
        self.ignored: Counter[str] = Counter()
        self.entries = FileTable(sorted(self._find(), key=lambda entry: natural_key(entry.name)))

    def _find(self) -> Iterator[FileEntry]:
        if not self.path.is_dir():
            yield _entry(self.path.name, self.path)
            return
        for name, file in _walk(self.path):
            if self._is_image(name):
                yield _entry(name, file)

    def exists(self) -> bool:
        """Whether anything is there; an unmounted drive leaves an empty folder."""
        try:
            if self.path.is_file():
                return True
            with os.scandir(self.path) as children:
                return any(children)
        except OSError:
            return False

    def open(self, entry: FileEntry) -> IO[bytes]:
        """Opens one of the files for reading."""
        return self.open_name(entry.name)

    def open_name(self, name: str) -> IO[bytes]:
        """Opens any file below the folder or in the archive by its name."""
        return (self.root / name).open("rb")

    def folders(self) -> set[str]:
        """Returns the real paths of the folders that hold the files."""
        names = {entry.name.rpartition("/")[0] for entry in self.entries}
        return {os.path.realpath(self.path / name) for name in names}

    def _is_image(self, name: str) -> bool:
        parts = name.split("/")  # `PurePath` is much slower for a million names
        if any(map(_is_hidden, parts)):
            return False
        _, dot, ending = parts[-1].rpartition(".")
        suffix = f".{ending.lower()}" if dot else ""
        if suffix not in self.suffixes:
            self.ignored[suffix or "without suffix"] += 1
        return suffix in self.suffixes


class ZipFiles(FileList):
    """The image files in a zip archive, which each process opens again."""

    def _find(self) -> Iterator[FileEntry]:
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        try:
            infos = self._archive().infolist()
        except Exception as error:  # a damaged archive makes zipfile raise nearly anything
            raise UserError(f"{self.path} is not a readable zip archive: {error}.") from error
        entries = {}  # the last of several members with one name counts
        for place, info in enumerate(infos):
            name = info.filename.replace("\\", "/")  # some Windows programs write "\"
            if not name.endswith("/") and self._is_image(name):
                entries[name] = FileEntry(name, info.file_size, info.CRC, place)
        yield from entries.values()

    def open(self, entry: FileEntry) -> IO[bytes]:
        """Opens one of the files for reading."""
        archive = self._archive()
        return archive.open(archive.infolist()[entry.place])

    def open_name(self, name: str) -> IO[bytes]:
        """Opens any file of the archive by its name."""
        return self._archive().open(name)

    def _archive(self) -> zipfile.ZipFile:
        # A forked worker must not share the file position with its parent.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.path)
        return self._opened[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}


def open_files(
    path: str | Path, subfolder: str | None = None, suffixes: Set[str] = SUFFIXES
) -> FileList:
    """Lists the images in a folder or `.zip` file; treats any other file as an image.

    Args:
        path: the folder or file.
        subfolder: list only the images below this folder of `path`.
        suffixes: the endings of image files.

    Raises:
        MissingPathError: if the path does not exist.
        UserError: if there are no image files.
    """
    path = Path(path).expanduser()
    if path.suffix == ".tar":
        raise UserError(_SHARDS.format(path))
    if not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). Give a folder of images, a .zip "
            "file or an image."
        )
    try:
        is_zip = path.is_file() and path.suffix.lower() == ".zip"
        files = (ZipFiles if is_zip else FileList)(path, suffixes)
    except PermissionError as error:
        raise UserError(f"{error.filename} cannot be read: check its permissions.") from error
    if files.ignored[".tar"] and not files.entries:
        raise UserError(_SHARDS.format(path))
    ignored = join_names([f"{count} {suffix}" for suffix, count in files.ignored.most_common()])
    if not files.entries:
        raise UserError(
            f"{path} holds no images{f' (but {ignored})' if ignored else ''}. Images can be at any "
            f"depth, and their names must end in {', '.join(sorted(suffixes))}."
        )
    if ignored:
        log.info("%s: ignored %s", path, ignored)
    if subfolder is not None:
        start = subfolder.rstrip("/") + "/"
        folders = {entry.name.rpartition("/")[0] for entry in files.entries} - {""}
        files.entries = FileTable(e for e in files.entries if e.name.startswith(start))
        if not files.entries:
            raise UserError(
                f"{path} holds no images in the folder {start[:-1]}. Its folders with images are: "
                f"{join_names(sorted(folders, key=natural_key))}."
            )
    return files


def natural_key(name: str) -> tuple[str, str]:
    """Returns a sort key under which `image10` follows `image9`; the plain name breaks ties."""
    padded = re.sub("0*([0-9]+)", lambda match: chr(len(match[1])) + match[1], name)
    return padded, name


def _entry(name: str, file: os.DirEntry[str] | Path) -> FileEntry:
    try:
        status = file.stat()
    except OSError:  # a link to nothing
        status = os.lstat(file)
    return FileEntry(name, status.st_size, status.st_mtime_ns)


def _walk(
    folder: Path | str, prefix: str = "", parents: frozenset[str] = frozenset()
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields the files below a folder, each with its path from there."""
    real = os.path.realpath(folder)
    if real in parents:  # a link to a folder that contains it
        return
    with os.scandir(folder) as children:
        for child in children:
            if not child.is_dir():
                yield prefix + child.name, child
            elif not _is_hidden(child.name):
                yield from _walk(child.path, f"{prefix}{child.name}/", parents | {real})


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"
