"""Uploaded pictures: checked, read as in training, and converted to tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from taming.data import BrokenImageError, ImageTransform, LabelMapReader, PictureReader
from taming.data.readers import decoding, one_hot, open_image
from taming.runtime.errors import UserError
from taming.tokenizer import Tokenizer

__all__ = ["MAX_FILE_SIZE", "read_label_map", "read_picture", "to_images"]

MAX_FILE_SIZE = 20 * 2**20  # bytes


def read_picture(file: str | Path | IO[bytes], alpha: bool = False) -> Image.Image:
    """Reads an uploaded picture as RGB with white behind transparent parts; as RGBA with `alpha`.

    Raises:
        UserError: if the file is not a picture, damaged, or too large.
    """
    with _explaining(file):
        if not alpha:
            return PictureReader(3).read(file)
        with decoding(), open_image(file) as opened:
            return opened.convert("RGBA")


def read_label_map(file: str, reader: LabelMapReader) -> np.ndarray:
    """Reads an uploaded label map as class numbers, uint8 `(H W)`.

    Raises:
        UserError: if the file is not a label map with these classes.
    """
    with _explaining(file):
        return np.array(reader.read(file, "the file"))


def to_images(
    picture: Image.Image | None,
    tokenizer: Tokenizer,
    grid_size: tuple[int, int],
    palette: np.ndarray | None = None,
) -> Tensor:
    """Crops a picture in the middle and resizes it to the tokenizer's input `(1 c H W)`.

    With a palette, uint8 `(c 3)`, it becomes a one-hot label map. Each pixel takes the class of the
    nearest colour.

    Raises:
        UserError: if `picture` is None.
    """
    if picture is None:
        raise UserError("the picture is empty: upload or draw one.")
    height, width = (side * tokenizer.downsample_factor for side in grid_size)
    if palette is not None:
        small = ImageOps.fit(picture, (width, height), Image.Resampling.NEAREST)
        pixels = torch.from_numpy(np.array(small)).float().flatten(0, 1)  # (H·W 3)
        classes = torch.cdist(pixels, torch.from_numpy(palette).float()).argmin(1)
        return one_hot(classes.view(height, width), len(palette))[None]
    transform = ImageTransform(resolution=(height, width), resize="shorter_side", crop="center")
    reader = PictureReader(1 if tokenizer.image_channels == 1 else 3)
    cropped = transform(picture.convert("L" if reader.channels == 1 else "RGB"))
    assert isinstance(cropped, Image.Image)
    return reader.tensor(cropped)[None]


@contextmanager
def _explaining(file: str | Path | IO[bytes]) -> Iterator[None]:
    """Raises a `UserError` that says why an uploaded file cannot be read."""
    try:
        yield
    except BrokenImageError as error:
        reason = str(error).replace(str(file), "the file")  # hides its path on the server
        raise UserError(
            f"this file cannot be read ({reason}): give a PNG, JPEG or WebP file; for a label map "
            "a PNG whose pixel values are class numbers."
        ) from error
