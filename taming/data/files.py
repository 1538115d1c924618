"""Image files in a folder or a zip archive, read the same way."""

import os
import re
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from taming.errors import MissingPathError, UserError

__all__ = ["FileEntry", "FolderFiles", "ZipFiles", "natural_key", "open_files"]

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}


class FileEntry(NamedTuple):
    """One image file.

    Attributes:
        name: path below the folder or in the archive, with forward slashes.
        size: bytes.
        stamp: changes with the content: modification time in a folder, CRC-32 in an archive.
    """

    name: str
    size: int
    stamp: int


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key under which `image10` follows `image9`; ties go by the plain name."""
    parts = re.split(r"([0-9]+)", name)
    return [(1, int(p), "") if i % 2 else (0, 0, p) for i, p in enumerate(parts)], name


class FolderFiles:
    """The image files below a folder, in natural order; links are followed, hidden files left out.

    Links that lead nowhere are among them, as in a git-annex or DVC checkout without its content.

    Attributes:
        entries: the files.
        ignored: number of files with other suffixes, by suffix.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ignored: Counter[str] = Counter()
        found = []
        for file in self._walk(path, frozenset()):
            name = file.relative_to(path).as_posix()
            if _is_image(name, self.ignored):
                try:
                    status = file.stat()
                except OSError:  # a link to nothing: an image that cannot be read
                    status = file.lstat()
                found.append(FileEntry(name, status.st_size, status.st_mtime_ns))
        self.entries = sorted(found, key=lambda entry: natural_key(entry.name))

    def read(self, name: str) -> bytes:
        """The content of one file."""
        return (self.path / name).read_bytes()

    def open(self, name: str) -> IO[bytes]:
        """One file, to read some of."""
        return (self.path / name).open("rb")

    def _walk(self, folder: Path, parents: frozenset[str]) -> list[Path]:
        real = os.path.realpath(folder)
        if real in parents:  # a link to a folder that contains it
            return []
        files = []
        try:
            with os.scandir(folder) as children:
                for child in children:
                    if child.is_dir() and not _is_hidden(child.name):
                        files += self._walk(Path(child.path), parents | {real})
                    elif child.is_file() or not Path(child.path).exists():
                        files.append(Path(child.path))
        except PermissionError as error:
            raise UserError(f"{folder} cannot be read: permission denied.") from error
        return files


class ZipFiles:
    """The image files in a zip archive, in natural order; each process opens it for itself.

    Attributes: as for `FolderFiles`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ignored: Counter[str] = Counter()
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        try:
            infos = [info for info in self._archive().infolist() if not info.is_dir()]
        except (zipfile.BadZipFile, OSError) as error:
            raise UserError(f"{path} is not a readable zip archive: {error}.") from error
        if any(info.flag_bits & 1 for info in infos):
            raise UserError(f"{path} is encrypted: unpack it and give the folder instead.")
        images = {}
        self._members: dict[str, str] = {}  # names in the archive that differ from the entries'
        for info in infos:
            name = info.filename.replace("\\", "/")  # some Windows programs write "\"
            if name != info.filename:
                self._members[name] = info.filename
            if not name.endswith("/") and _is_image(name, self.ignored):
                images[name] = FileEntry(name, info.file_size, info.CRC)
        self.entries = sorted(images.values(), key=lambda entry: natural_key(entry.name))

    def read(self, name: str) -> bytes:
        """The content of one file."""
        return self._archive().read(self._members.get(name, name))

    def open(self, name: str) -> IO[bytes]:
        """One file, to read some of."""
        return self._archive().open(self._members.get(name, name))

    def _archive(self) -> zipfile.ZipFile:
        # A forked worker must not share the file position with its parent.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.path)
        return self._opened[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}


def open_files(
    path: str | Path,
    key: str = "data.path",
    subfolder: str | None = None,
    subfolder_key: str = "data.subfolder",
) -> FolderFiles | ZipFiles:
    """Lists the images in a folder or `.zip` file.

    Args:
        path: where.
        key: name of the setting `path` came from, for messages.
        subfolder: list only the images below this folder of it; None for all.
        subfolder_key: name of the setting `subfolder` came from.

    Raises:
        MissingPathError: if nothing is there.
        UserError: if it is neither of the two or holds no image files.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise MissingPathError(
            f"{path} does not exist (looked from {Path.cwd()}). "
            f"Give a folder of images or a .zip file as {key}."
        )
    if path.is_file() and path.suffix.lower() != ".zip":
        raise UserError(f"{path} is neither a folder nor a .zip file: {key} must be one of them.")
    files = ZipFiles(path) if path.is_file() else FolderFiles(path)
    if not files.entries:
        others = f" (but {describe_ignored(files.ignored)})" if files.ignored else ""
        raise UserError(
            f"{path} holds no images{others}: {key} must lead to files that end in "
            f"{', '.join(sorted(SUFFIXES))}, in it or in folders below it."
        )
    if subfolder is not None:
        _keep_subfolder(files, str(subfolder).strip("/"), subfolder_key)
    return files


def _keep_subfolder(files: FolderFiles | ZipFiles, subfolder: str, key: str) -> None:
    folders = {entry.name.rpartition("/")[0] for entry in files.entries}
    files.entries = [entry for entry in files.entries if entry.name.startswith(f"{subfolder}/")]
    if not files.entries:
        found = sorted(folders - {""}, key=natural_key)
        listed = ", ".join(found[:10]) + (", …" if len(found) > 10 else "")
        raise UserError(
            f"{files.path} holds no images in {key}={subfolder}; "
            f"{f'its folders with images: {listed}' if found else 'none of its folders has any'}."
        )


def describe_ignored(ignored: Counter[str]) -> str:
    """`3 .txt, 1 .gif`: most frequent first."""
    return ", ".join(f"{count} {suffix}" for suffix, count in ignored.most_common(10))


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"


def _is_image(name: str, ignored: Counter[str]) -> bool:
    path = PurePosixPath(name)
    if any(_is_hidden(part) for part in path.parts):
        return False
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        ignored[suffix or "without suffix"] += 1
    return suffix in SUFFIXES
