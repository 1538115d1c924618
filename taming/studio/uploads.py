"""Pictures that come from the page: checked, read as training reads them, and made tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import gradio as gr
import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from taming.data import BrokenImageError, ImageTransform, LabelMapReader, PictureReader
from taming.data.readers import decoding, one_hot, open_image
from taming.runtime.errors import UserError
from taming.studio.events import sentences
from taming.tokenizer import Tokenizer

__all__ = [
    "MAX_FILE_SIZE",
    "paint_picture",
    "read_label_map",
    "read_picture",
    "to_images",
    "upload_picture",
]

MAX_FILE_SIZE = 20 * 2**20  # bytes


def upload_picture(label: str = "picture") -> gr.Image:
    """Adds a picture to upload or paste, which is read by `read_picture`."""
    picture = gr.Image(label=label, type="pil", sources=["upload", "clipboard"], height=260)

    def preprocess(payload: Any) -> Image.Image | None:
        with sentences():
            return None if payload is None else read_picture(payload.path)

    # not a subclass: Gradio would write a file beside its module
    picture.preprocess = preprocess
    return picture


def paint_picture(label: str, palette: np.ndarray | None = None, **settings: Any) -> gr.ImageEditor:
    """Adds a picture to paint, upon an uploaded one or upon nothing.

    Its value is what is seen on it, as RGB; None where nothing is. `palette`, uint8 `(c 3)`, has
    the only colours to paint with.
    """
    if palette is not None:
        colors = ["#{:02x}{:02x}{:02x}".format(*color) for color in palette]
        brush = gr.Brush(colors=colors, default_color=colors[-1], color_mode="fixed")
        settings |= {"brush": brush, "eraser": False}
    canvas = gr.ImageEditor(
        label=label,
        type="pil",
        format="png",
        sources=("upload", "clipboard"),
        transforms=(),
        layers=False,
        **settings,
    )
    read = canvas.preprocess

    def preprocess(payload: Any) -> Any:
        with sentences():
            value = read(payload)
        if value is None or not any([value["background"], *value["layers"]]):
            return None
        return value["composite"]

    canvas.convert_and_format_image = _read_layer
    canvas.preprocess = preprocess
    return canvas


def _read_layer(file: Any, flatten_on_white: bool = False) -> Image.Image | None:
    """Reads one of a canvas' pictures, a file or the bytes of one; None if it is empty."""
    if file is None:
        return None
    picture = read_picture(BytesIO(file) if isinstance(file, bytes) else file.path, alpha=True)
    if picture.getbbox() is None:  # transparent everywhere
        return None
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def read_picture(file: str | Path | IO[bytes], alpha: bool = False) -> Image.Image:
    """Reads an uploaded picture as RGB, white behind transparent parts; or as RGBA with `alpha`.

    Raises:
        UserError: if it is no picture, damaged, or too large.
    """
    with _explaining(file):
        if not alpha:
            return PictureReader(3).read(file)
        with decoding(), open_image(file) as opened:
            return opened.convert("RGBA")


def read_label_map(file: str, reader: LabelMapReader) -> np.ndarray:
    """Reads an uploaded label map as class numbers, uint8 `(H W)`.

    Raises:
        UserError: if it is no label map of these classes.
    """
    with _explaining(file):
        return np.array(reader.read(file, "the file"))


def to_images(
    picture: Image.Image | None,
    tokenizer: Tokenizer,
    grid_size: tuple[int, int],
    palette: np.ndarray | None = None,
) -> Tensor:
    """Makes a picture the tokenizer's input `(1 c H W)`, cropped in the middle and resized.

    With a palette, uint8 `(c 3)`, it becomes a one-hot label map: each pixel takes the class of
    the nearest colour.

    Raises:
        UserError: if there is no picture.
    """
    if picture is None:
        raise UserError("there is no picture yet: upload one, or draw it.")
    height, width = (side * tokenizer.downsample_factor for side in grid_size)
    if palette is not None:
        small = ImageOps.fit(picture, (width, height), Image.Resampling.NEAREST)
        pixels = torch.from_numpy(np.array(small)).float().flatten(0, 1)  # (H·W 3)
        classes = torch.cdist(pixels, torch.from_numpy(palette).float()).argmin(1)
        return one_hot(classes.view(height, width), len(palette))[None]
    transform = ImageTransform(resolution=(height, width), resize="shorter_side", crop="center")
    reader = PictureReader(1 if tokenizer.image_channels == 1 else 3)
    shown = picture.convert("L" if reader.channels == 1 else "RGB")
    cut_out = transform(shown)
    assert isinstance(cut_out, Image.Image)
    return reader.tensor(cut_out)[None]


@contextmanager
def _explaining(file: str | Path | IO[bytes]) -> Iterator[None]:
    """Says in a sentence why an uploaded file cannot be read."""
    try:
        yield
    except BrokenImageError as error:
        reason = str(error).replace(str(file), "the file")  # not where it lies on the server
        raise UserError(
            f"this file cannot be read ({reason}): give a PNG, JPEG or WebP file; for a label map "
            "a PNG whose pixel values are class numbers."
        ) from error
