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
from taming.serialization.inert_pickle import InertUnpickler, Placeholder, Storage

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
        first_line = (str(error).strip() or type(error).__name__).split("\n")[0][:200]
        raise UserError(
            f"{path} cannot be read as a PyTorch checkpoint: it is damaged, incomplete or "
            f"something else ({first_line})."
        ) from error


def _read_zip(path: Path) -> ForeignCheckpoint:
    """The format of today: `NAME/data.pkl`, and each storage in a file `NAME/data/KEY`."""
    with zipfile.ZipFile(path) as archive:
        (pickled,) = (n for n in archive.namelist() if n.endswith("/data.pkl") and n.count("/") < 2)
        folder = pickled.removesuffix("data.pkl")
        if folder + "byteorder" in archive.namelist():
            order = archive.read(folder + "byteorder").decode()
            if order != sys.byteorder:
                raise ValueError(f"its numbers are {order}-endian, this machine's are not")
        storages: dict[str, torch.Tensor] = {}

        def storage(dtype: torch.dtype, key: str, location: Any, num_elements: int) -> Storage:
            if key not in storages:
                storages[key] = _from_bytes(archive.read(f"{folder}data/{key}"))
            if len(storages[key]) != num_elements * dtype.itemsize:
                raise ValueError(f"storage {key} is of another size than stated")
            return storages[key], dtype

        unpickler = InertUnpickler(storage)
        content = unpickler.run(io.BytesIO(archive.read(pickled)))
    return ForeignCheckpoint(content, tuple(sorted(unpickler.not_built)))


def _read_stream(path: Path) -> ForeignCheckpoint:
    """The format before PyTorch 1.6: five pickles, then each storage's length and bytes."""
    file_size = path.stat().st_size
    storages: dict[str, Storage] = {}

    def storage(
        dtype: torch.dtype, key: str, location: Any, num_elements: int, view: Any = None
    ) -> Storage:
        if key not in storages:
            num_bytes = num_elements * dtype.itemsize
            if num_bytes > file_size:
                raise ValueError(f"storage {key} is larger than the file")
            storages[key] = torch.zeros(num_bytes, dtype=torch.uint8), dtype
        data, dtype = storages[key]
        if view is not None:
            _, offset, length = view
            data = data.narrow(0, offset * dtype.itemsize, length * dtype.itemsize)
        return data, dtype

    unpickler = InertUnpickler(storage)
    with path.open("rb") as file:
        magic, version, _ = (unpickler.run(file) for _ in range(3))
        if (magic, version) != (STREAM_MAGIC, STREAM_VERSION):
            raise ValueError("it does not begin as one")
        content = unpickler.run(file)
        keys = unpickler.run(file)
        if set(keys) != set(storages):
            raise ValueError("its storages are not those of its tensors")
        for key in keys:
            data, dtype = storages[key]
            (num_elements,) = struct.unpack("<q", file.read(8))
            if num_elements * dtype.itemsize != len(data):
                raise ValueError(f"storage {key} is of another size than stated")
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
