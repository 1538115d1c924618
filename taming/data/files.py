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

__all__ = [
    "SUFFIXES",
    "FileEntry",
    "FileList",
    "FileTable",
    "natural_key",
    "open_files",
    "suffix_of",
]

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})

log = logging.getLogger(__name__)


class FileEntry(NamedTuple):
    """One image file."""

    name: str  # path below the folder or in the archive, with forward slashes
    size: int  # bytes
    stamp: int  # changes with the content: modification time in a folder, CRC-32 in an archive
    archive: int = 0  # number of the archive, of several
    place: int = 0  # number of the file in a zip archive, or its first byte in a tar archive


class FileTable:
    """Many files in a few arrays: a million take 100 MB, and loader processes share them.

    Args:
        entries: of the files.
    """

    def __init__(self, entries: Iterable[FileEntry]) -> None:
        names, numbers, length = bytearray(), array("q"), 0
        for name, *rest in entries:
            names += os.fsencode(name)
            numbers.extend((length, len(names), *rest))
            length = len(names)
        self._names = bytes(names)
        # where a name starts and ends, and the rest of its entry
        self._numbers = np.array(numbers, dtype=np.int64).reshape(-1, 1 + len(FileEntry._fields))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> FileEntry:
        start, end, *rest = self._numbers[index].tolist()
        return FileEntry(os.fsdecode(self._names[start:end]), *rest)

    def __iter__(self) -> Iterator[FileEntry]:
        return map(self.__getitem__, range(len(self)))

    def take(self, indices: Sequence[int]) -> "FileTable":
        """Returns these files, in this order."""
        taken = copy(self)
        taken._numbers = self._numbers[np.asarray(indices, dtype=np.int64)]
        return taken

    @property
    def total_size(self) -> int:
        """Bytes in all files together."""
        return int(self._numbers[:, 2].sum())

    def digest(self) -> str:
        """Returns a digest of names, sizes and stamps, in their order."""
        found = hashlib.sha256(self._numbers[:, 2:4].tobytes())
        for start, end in self._numbers[:, :2].tolist():
            found.update(self._names[start:end] + b"\0")
        return found.hexdigest()


class FileList:
    """The image files below a folder, or a single file whatever its suffix, in natural order.

    Links are followed, hidden files left out. Links that lead nowhere are among the files, as in a
    git-annex or DVC checkout without its content.

    Attributes:
        path: the folder, archive or file.
        root: the folder that they, or their archives, are in.
        entries: the files.
        ignored: number of files with other suffixes, by suffix.
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

    def are_there(self) -> bool:
        """Returns whether anything is there: a drive may have been unmounted."""
        try:
            if self.path.is_file():
                return True
            with os.scandir(self.path) as found:
                return any(found)
        except OSError:
            return False

    def open(self, entry: FileEntry) -> IO[bytes]:
        """Opens one of the files for reading."""
        return self.open_other(entry.name)

    def open_other(self, name: str) -> IO[bytes]:
        """Opens any file that lies beside them."""
        return (self.root / name).open("rb")

    def folders(self) -> set[str]:
        """Returns the real paths of the folders that hold the files."""
        names = {entry.name.rpartition("/")[0] for entry in self.entries}
        return {os.path.realpath(self.path / name) for name in names}

    def classes(self) -> list[str] | None:
        """Returns the class of each file, where it is not for their folders to say."""
        return None

    def _is_image(self, name: str) -> bool:
        suffix = suffix_of(name)
        if suffix is not None and suffix not in self.suffixes:
            self.ignored[suffix or "without suffix"] += 1
        return suffix in self.suffixes


def suffix_of(name: str) -> str | None:
    """Returns what a file's name ends in, such as `.png`; None for hidden files."""
    parts = name.split("/")  # a hundred thousand names: as paths they take much longer
    if any(map(_is_hidden, parts)):
        return None
    _, dot, ending = parts[-1].rpartition(".")
    return f".{ending.lower()}" if dot else ""


class ZipFiles(FileList):
    """The image files in a zip archive; each process opens it for itself."""

    def _find(self) -> Iterator[FileEntry]:
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        try:
            infos = self._archive().infolist()
        except Exception as error:  # a damaged archive makes zipfile raise nearly anything
            raise UserError(f"{self.path} is not a readable zip archive: {error}.") from error
        entries = {}  # of several members of one name the last counts
        for place, info in enumerate(infos):
            name = info.filename.replace("\\", "/")  # some Windows programs write "\"
            if not name.endswith("/") and self._is_image(name):
                entries[name] = FileEntry(name, info.file_size, info.CRC, place=place)
        yield from entries.values()

    def open(self, entry: FileEntry) -> IO[bytes]:
        """Opens one of the files for reading."""
        archive = self._archive()
        return archive.open(archive.infolist()[entry.place])

    def open_other(self, name: str) -> IO[bytes]:
        """Opens any file of the archive."""
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
    """Lists the images in a folder, `.zip` file or shards; any other file is taken for an image.

    Shards are `.tar` archives: one, a folder that holds nothing else, or a pattern (`find_shards`).
    With `subfolder`, only the images below this folder of it are listed. Images are the files that
    end in one of `suffixes`.

    Raises:
        MissingPathError: if nothing is there.
        UserError: if there are no image files.
    """
    from taming.data.shards import TarFiles, find_shards  # made of what is above

    path = Path(path).expanduser()
    shards = find_shards(path)
    if not shards and not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). Give a folder of images, a .zip "
            "file, .tar shards or an image."
        )
    try:
        if shards and not path.is_dir():
            files: FileList = TarFiles(path, suffixes, shards)
        elif path.is_file() and path.suffix.lower() == ".zip":
            files = ZipFiles(path, suffixes)
        else:
            files = FileList(path, suffixes)
            if shards and not files.entries:
                files = TarFiles(path, suffixes, shards)
            elif shards:
                log.warning(
                    "note: %s: images that are files are taken (%d), and not those in its .tar "
                    "archives: for these, move the files away",
                    path,
                    len(files.entries),
                )
    except PermissionError as error:
        raise UserError(f"{error.filename} may not be read: check its permissions.") from error
    ignored = join_names([f"{count} {suffix}" for suffix, count in files.ignored.most_common()])
    if not files.entries:
        raise UserError(
            f"{path} holds no images{f' (but {ignored})' if ignored else ''}: they are files that "
            f"end in {', '.join(sorted(suffixes))}, in it or in folders below it."
        )
    if ignored:
        log.info("%s: ignored %s", path, ignored)
    if subfolder is not None:
        start = subfolder.rstrip("/") + "/"
        folders = {entry.name.rpartition("/")[0] for entry in files.entries} - {""}
        files.entries = FileTable(e for e in files.entries if e.name.startswith(start))
        if not files.entries:
            raise UserError(
                f"{path} holds no images in the folder {start[:-1]}; its folders with images: "
                f"{join_names(sorted(folders, key=natural_key))}."
            )
    return files


def natural_key(name: str) -> tuple[str, str]:
    """Returns a sort key under which `image10` follows `image9`; ties go by the plain name."""
    longer_is_larger = re.sub("0*([0-9]+)", lambda found: chr(len(found[1])) + found[1], name)
    return longer_is_larger, name


def _entry(name: str, file: os.DirEntry[str] | Path) -> FileEntry:
    try:
        status = file.stat()
    except OSError:  # a link to nothing cannot be read
        status = os.lstat(file)
    return FileEntry(name, status.st_size, status.st_mtime_ns)


def _walk(
    folder: Path | str, prefix: str = "", parents: frozenset[str] = frozenset()
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields the files below a folder, each with its name from there on."""
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
