"""From an image file of any kind to 8-bit grey or RGB."""

from pathlib import Path
from typing import IO, BinaryIO, Literal

import numpy as np
from PIL import Image, ImageOps

from taming.errors import UserError

__all__ = ["BrokenImageError", "Channels", "Color", "load_image"]

Channels = Literal[1, 3]
Color = tuple[int, int, int]

MODES = {1: "L", 3: "RGB"}
ORIENTATION = 0x0112


class BrokenImageError(UserError):
    """A file that cannot be decoded as an image; the message is the reason alone."""


def load_image(file: str | Path | BinaryIO, channels: Channels, background: Color) -> Image.Image:
    """Decodes a file into the picture a viewer shows.

    EXIF rotation is applied; palettes are resolved; transparent parts show `background`; 16-bit
    grey is scaled to 8 bit by 255/65535; CMYK is converted without its colour profile; of an
    animation or a many-page file the first picture is taken.

    Args:
        file: path or open binary file.
        channels: 1 for grey, 3 for RGB.
        background: RGB, 0 to 255, behind transparent parts.

    Returns:
        An image of mode `L` or `RGB`.

    Raises:
        BrokenImageError: if the file cannot be decoded completely.
    """
    # Decoders raise nearly every exception there is on damaged files.
    try:
        with Image.open(file) as opened:
            opened.load()
            image = _to_eight_bit(_upright(opened))
            if image.has_transparency_data:
                image = _over(background, image)
            return image.convert(MODES[channels])
    except Exception as error:
        raise BrokenImageError(reason(error)) from error


def header_size(file: str | Path | IO[bytes]) -> tuple[int, int]:
    """(height, width) in pixels after EXIF rotation, without decoding the picture.

    Raises:
        BrokenImageError: if the header is damaged.
    """
    try:
        with Image.open(file) as opened:
            width, height = opened.size
            # Orientation 5 to 8 swaps the sides. Of a PNG it cannot be had without decoding, and
            # of a TIFF Pillow has swapped them.
            has_it = opened.format not in ("PNG", "TIFF")
            turned = has_it and opened.getexif().get(ORIENTATION, 1) >= 5
            opened.verify()
    except Exception as error:
        raise BrokenImageError(reason(error)) from error
    return (width, height) if turned else (height, width)


def reason(error: Exception) -> str:
    """One line for a log: what a decoder complained about."""
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image of a known format"
    return str(error).strip().split("\n")[0] or type(error).__name__


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF in a file whose picture is whole
        return image


def _to_eight_bit(image: Image.Image) -> Image.Image:
    if image.mode == "LAB":
        return image.convert("RGB")  # the only mode that Pillow converts it to
    if not image.mode.startswith(("I", "F")):
        return image
    samples = np.asarray(image)
    limit = 1.0 if image.mode == "F" else 65535.0
    if not np.isfinite(samples).all() or samples.min() < 0 or samples.max() > limit:
        raise ValueError(f"samples of mode {image.mode} outside 0 to {limit:g}: unknown range")
    grey = Image.fromarray(np.round(samples * (255.0 / limit)).astype(np.uint8))
    if (transparent := image.info.get("transparency")) is not None:  # one of the 16-bit values
        grey.putalpha(Image.fromarray(samples != transparent).convert("L"))
    return grey


def _over(background: Color, image: Image.Image) -> Image.Image:
    canvas = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(canvas, image.convert("RGBA"))
