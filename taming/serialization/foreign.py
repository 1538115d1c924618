"""Checkpoints of other programs, read without running or constructing anything of theirs.

Such files pickle the other program's objects (Lightning callbacks, configurations) beside the
weights, and unpickling an object means calling whatever the file names. Here nothing is called: see
`inert_pickle`, which builds numbers, strings, plain containers and tensors.
"""

import io
import struct
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from taming.errors import MissingPathError, UserError
from taming.serialization.foreign_names import shown
from taming.serialization.inert_pickle import InertUnpickler
from taming.serialization.inert_values import Placeholder, Storage

__all__ = ["ForeignCheckpoint", "Placeholder", "read_foreign_checkpoint"]

STREAM_MAGIC = 0x1950A86A20F9469CFC6C  # the first value of files before PyTorch 1.6
STREAM_VERSION = 1001


@dataclass(frozen=True)
class ForeignCheckpoint:
    """What a foreign checkpoint holds.

    Attributes:
        content: plain containers, numbers, strings and tensors on the CPU, else `Placeholder`s.
        not_built: dotted names of the other program's objects in the file, sorted.
    """

    content: Any
    not_built: tuple[str, ...]


def read_foreign_checkpoint(path: str | Path) -> ForeignCheckpoint:
    """Reads a file of `torch.save`, the zip format or the stream format before PyTorch 1.6.

    Raises:
        MissingPathError: if the file does not exist.
        UserError: if it is damaged, incomplete or not such a file.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        what = "is a directory, not a file" if path.is_dir() else "does not exist"
        raise MissingPathError(f"{path} {what} (looked from {Path.cwd()}): give a checkpoint file.")
    try:
        return _read_zip(path) if zipfile.is_zipfile(path) else _read_stream(path)
    except Exception as error:  # whatever nonsense makes Python, zipfile and torch raise
        first_line = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise UserError(
            f"{path} cannot be read as a PyTorch checkpoint: it is damaged, incomplete or "
            f"something else ({shown(first_line, at_most=200)})."
        ) from error


@dataclass
class _Room:
    """Room for storages, at first that of the file: they are in it, once and uncompressed."""

    left: int

    def take(self, key: str, num_bytes: int) -> None:
        if not 0 <= num_bytes <= self.left:
            raise ValueError(f"with storage {shown(key)}, more is stated than is in the file")
        self.left -= num_bytes


def _read_zip(path: Path) -> ForeignCheckpoint:
    """The format of today: `NAME/data.pkl`, and each storage in a file `NAME/data/KEY`."""
    room = _Room(path.stat().st_size)
    with zipfile.ZipFile(path) as archive:
        (pickled,) = (n for n in archive.namelist() if n.endswith("/data.pkl") and n.count("/") < 2)
        folder = pickled.removesuffix("data.pkl")
        if folder + "byteorder" in archive.namelist():
            order = _member(archive, folder + "byteorder", 10).decode()
            if order != sys.byteorder:
                raise ValueError(f"its numbers are {shown(order)}-endian, this machine's are not")
        storages: dict[str, torch.Tensor] = {}

        def storage(dtype: torch.dtype, key: str, num_elements: int) -> Storage:
            num_bytes = num_elements * dtype.itemsize
            if key not in storages:
                room.take(key, num_bytes)
                storages[key] = _from_bytes(_member(archive, f"{folder}data/{key}", num_bytes))
            if len(storages[key]) != num_bytes:
                raise ValueError(f"storage {shown(key)} is of another size than stated")
            return storages[key], dtype

        unpickler = InertUnpickler(storage)
        content = unpickler.run(io.BytesIO(_member(archive, pickled, room.left)))
    return ForeignCheckpoint(content, tuple(sorted(unpickler.not_built)))


def _member(archive: zipfile.ZipFile, name: str, at_most: int) -> bytes:
    """A file in the archive, uncompressed as torch.save writes it; looked at before it is read."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{shown(name)} in it is compressed, and torch.save compresses nothing")
    if info.file_size > at_most:
        raise ValueError(f"{shown(name)} in it is larger than can be")
    return archive.read(info)


def _read_stream(path: Path) -> ForeignCheckpoint:
    """The format before PyTorch 1.6: five pickles, then each storage's length and bytes."""
    room = _Room(path.stat().st_size)
    storages: dict[str, Storage] = {}

    def storage(dtype: torch.dtype, key: str, num_elements: int, view: Any = None) -> Storage:
        if key not in storages:
            num_bytes = num_elements * dtype.itemsize
            room.take(key, num_bytes)
            storages[key] = torch.zeros(num_bytes, dtype=torch.uint8), dtype
        data, dtype = storages[key]
        if view is not None:
            _, offset, length = view
            if not isinstance(offset, int) or not isinstance(length, int):
                raise TypeError("a view that is none")
            data = data.narrow(0, offset * dtype.itemsize, length * dtype.itemsize)
        return data, dtype

    unpickler = InertUnpickler(storage)
    with path.open("rb") as file:
        magic, version, _ = (unpickler.run(file) for _ in range(3))
        if (magic, version) != (STREAM_MAGIC, STREAM_VERSION):
            raise ValueError("it does not begin as one")
        content = unpickler.run(file)
        keys = unpickler.run(file)
        if not all(isinstance(key, str) for key in keys) or set(keys) != set(storages):
            raise ValueError("its storages are not those of its tensors")
        for key in keys:
            data, dtype = storages[key]
            (num_elements,) = struct.unpack("<q", file.read(8))
            if num_elements * dtype.itemsize != len(data):
                raise ValueError(f"storage {shown(key)} is of another size than stated")
            data.copy_(_from_bytes(_read_exactly(file, len(data))))
    return ForeignCheckpoint(content, tuple(sorted(unpickler.not_built)))


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError("it ends too early")
    return data


def _from_bytes(data: bytes) -> torch.Tensor:
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
