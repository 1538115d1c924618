"""Generated images of any program: a `samples.npz`, a folder or a `.zip` file."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from taming.data.built_in import ImageArray
from taming.data.dataset import ImageList
from taming.data.image_folder import ImageFolder
from taming.data.readers import PictureReader
from taming.runtime.errors import MissingPathError, UserError

__all__ = ["open_samples", "read_array"]


def open_samples(
    path: str | Path, reader: PictureReader, class_names: Sequence[str] = ()
) -> ImageList:
    """Opens generated images, with their classes where these are known.

    An `.npz` file has `arr_0`, uint8 `(n H W 3)` or `(n H W)`, and optionally `arr_1`, class
    numbers `(n,)`. Images of an uncompressed file are read from disk when they are needed. In a
    folder or `.zip` file, folders are classes if their names are in `class_names`.

    Args:
        path: the file or folder.
        reader: decodes the images.
        class_names: the classes of the data; empty without classes.

    Raises:
        MissingPathError: if the path does not exist.
        UserError: if there are no images, or a class does not exist.
    """
    path = Path(path).expanduser()
    if path.suffix != ".npz":
        images = ImageFolder(path, reader, labels="auto")
        if images.class_names:
            known_classes = class_names if set(images.class_names) <= set(class_names) else []
            images = ImageFolder(path, reader, labels="auto", known_classes=known_classes)
        images.drop_broken("header")
        return images
    if not path.is_file():
        raise MissingPathError(f"{path} does not exist (looked from {Path.cwd()}).")
    try:
        pixels, labels = read_array(path, "arr_0"), read_array(path, "arr_1")
    except Exception as error:  # a damaged file makes zipfile and NumPy raise nearly anything
        raise UserError(f"{path} cannot be read as an .npz file of arrays: {error}.") from error
    if (
        pixels is None
        or pixels.dtype != np.uint8
        or pixels.ndim < 3
        or pixels.shape[3:] not in ((), (3,))
        or not pixels.size
    ):
        actual = "missing" if pixels is None else f"{pixels.dtype} of shape {pixels.shape}"
        raise UserError(f"{path}: arr_0 must be uint8 (n, height, width, 3), but is {actual}.")
    if labels is None or not class_names:
        return ImageArray(str(path), pixels, [-1] * len(pixels), [], reader.channels)
    if labels.shape != pixels.shape[:1] or not 0 <= labels.min() <= labels.max() < len(class_names):
        raise UserError(
            f"{path}: arr_1 must have a class number, 0 to {len(class_names) - 1}, for each of the "
            f"{len(pixels)} images."
        )
    return ImageArray(str(path), pixels, labels, list(class_names), reader.channels)


def read_array(path: Path, name: str) -> np.ndarray | None:
    """Returns an array of an `.npz` file, memory-mapped unless it is compressed."""
    with zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            return None
        entry = archive.getinfo(f"{name}.npy")
        with archive.open(entry) as file:
            if entry.compress_type != zipfile.ZIP_STORED:
                return np.lib.format.read_array(file, allow_pickle=False)
            version = np.lib.format.read_magic(file)
            read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, in_fortran_order, dtype = read_header(file)
            start = file.tell()
    if dtype.hasobject or in_fortran_order:
        raise ValueError(f"{name} is not a plain array")
    with path.open("rb") as whole:  # each file has a header in front of its content
        whole.seek(entry.header_offset + 26)
        lengths = np.frombuffer(whole.read(4), "<u2")
    offset = entry.header_offset + 30 + int(lengths.sum()) + start
    return np.memmap(path, dtype, "r", offset, shape)
