"""Image files in a folder, in a zip archive, or a single one, read the same way."""

import logging
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from taming.errors import MissingPathError, UserError, join_names

__all__ = ["FileEntry", "FileList", "natural_key", "open_files"]

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}

log = logging.getLogger(__name__)


class FileEntry(NamedTuple):
    """One image file."""

    name: str  # path below the folder or in the archive, with forward slashes
    size: int  # bytes
    stamp: int  # changes with the content: modification time in a folder, CRC-32 in an archive


class FileList:
    """The image files below a folder, or a single file whatever its suffix, in natural order.

    Links are followed, hidden files left out. Links that lead nowhere are among the files, as in a
    git-annex or DVC checkout without its content.

    Attributes:
        path: the folder, archive or file.
        entries: the files.
        ignored: number of files with other suffixes, by suffix.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ignored: Counter[str] = Counter()
        self.entries = sorted(self._find(), key=lambda entry: natural_key(entry.name))

    def _find(self) -> Iterator[FileEntry]:
        if not self.path.is_dir():
            yield _entry(self.path.name, self.path)
            return
        for file in _walk(self.path):
            name = file.relative_to(self.path).as_posix()
            if self._is_image(name):
                yield _entry(name, file)

    def open(self, name: str) -> IO[bytes]:
        """Opens one of the files for reading."""
        return (self.path / name if self.path.is_dir() else self.path).open("rb")

    def _is_image(self, name: str) -> bool:
        path = PurePosixPath(name)
        if any(map(_is_hidden, path.parts)):
            return False
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            self.ignored[suffix or "without suffix"] += 1
        return suffix in SUFFIXES


class ZipFiles(FileList):
    """The image files in a zip archive; each process opens it for itself."""

    def _find(self) -> Iterator[FileEntry]:
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        self._members: dict[str, str] = {}  # names in the archive, by entry
        try:
            infos = self._archive().infolist()
        except Exception as error:  # a damaged archive makes zipfile raise nearly anything
            raise UserError(f"{self.path} is not a readable zip archive: {error}.") from error
        entries = {}  # of several members of one name the last counts
        for info in infos:
            name = info.filename.replace("\\", "/")  # some Windows programs write "\"
            if not name.endswith("/") and self._is_image(name):
                self._members[name] = info.filename
                entries[name] = FileEntry(name, info.file_size, info.CRC)
        yield from entries.values()

    def open(self, name: str) -> IO[bytes]:
        """Opens one of the files for reading."""
        return self._archive().open(self._members[name])

    def _archive(self) -> zipfile.ZipFile:
        # A forked worker must not share the file position with its parent.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.path)
        return self._opened[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}


def open_files(path: str | Path, subfolder: str | None = None) -> FileList:
    """Lists the images in a folder or `.zip` file; any other file is taken for an image.

    With `subfolder`, only the images below this folder of it are listed.

    Raises:
        MissingPathError: if nothing is there.
        UserError: if there are no image files.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). Give a folder of images, a .zip "
            "file or an image."
        )
    is_zip = path.is_file() and path.suffix.lower() == ".zip"
    try:
        files = ZipFiles(path) if is_zip else FileList(path)
    except PermissionError as error:
        raise UserError(f"{error.filename} may not be read: check its permissions.") from error
    ignored = join_names([f"{count} {suffix}" for suffix, count in files.ignored.most_common()])
    if not files.entries:
        raise UserError(
            f"{path} holds no images{f' (but {ignored})' if ignored else ''}: they are files that "
            f"end in {', '.join(sorted(SUFFIXES))}, in it or in folders below it."
        )
    if ignored:
        log.info("%s: ignored %s", path, ignored)
    if subfolder is not None:
        start = subfolder.rstrip("/") + "/"
        folders = {entry.name.rpartition("/")[0] for entry in files.entries} - {""}
        files.entries = [entry for entry in files.entries if entry.name.startswith(start)]
        if not files.entries:
            raise UserError(
                f"{path} holds no images in the folder {start[:-1]}; its folders with images: "
                f"{join_names(sorted(folders, key=natural_key))}."
            )
    return files


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Returns a sort key under which `image10` follows `image9`; ties go by the plain name."""
    parts = re.split(r"([0-9]+)", name)
    return [(1, int(p), "") if i % 2 else (0, 0, p) for i, p in enumerate(parts)], name


def _entry(name: str, file: Path) -> FileEntry:
    status = file.stat() if file.exists() else file.lstat()  # a link to nothing cannot be read
    return FileEntry(name, status.st_size, status.st_mtime_ns)


def _walk(folder: Path, parents: frozenset[str] = frozenset()) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in parents:  # a link to a folder that contains it
        return
    with os.scandir(folder) as children:
        for child in children:
            if not child.is_dir():
                yield Path(child.path)
            elif not _is_hidden(child.name):
                yield from _walk(Path(child.path), parents | {real})


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"
