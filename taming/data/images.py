"""From an image file of any kind to 8-bit grey or RGB."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Literal, Protocol

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps

from taming.errors import UserError

__all__ = ["BrokenImageError", "Channels", "Color", "PictureReader", "Reader", "decoding"]

Channels = Literal[1, 3]
Color = tuple[int, int, int]  # red, green and blue, 0 to 255
File = str | Path | IO[bytes]


class BrokenImageError(UserError):
    """A file that cannot be decoded as an image; the message is the reason alone."""


class Reader(Protocol):
    """Decodes image files of one kind, and turns the images into tensors."""

    @property
    def channels(self) -> int:
        """Channels of the tensors: 1, 3, or the number of classes of label maps."""

    @property
    def label_maps(self) -> bool:
        """Whether pixel values are class numbers."""

    def read(self, file: File, name: str) -> Image.Image:
        """Decodes a file; `name` is what an error calls it. Raises `BrokenImageError`."""

    def tensor(self, image: Image.Image) -> torch.Tensor:
        """Turns an image of this kind into float32 `(c H W)`."""


@contextmanager
def decoding() -> Iterator[None]:
    """Turns what a decoder raises on a damaged file, nearly anything, into `BrokenImageError`."""
    try:
        yield
    except UserError:
        raise
    except Image.UnidentifiedImageError as error:
        raise BrokenImageError("not an image of a known format") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise BrokenImageError(reason) from error


@dataclass(frozen=True)
class PictureReader:
    """Reads a file as the picture a viewer shows.

    EXIF rotation is applied; palettes are resolved; transparent parts show `background`; 16-bit
    grey is scaled to 8 bit by 255/65535; CMYK is converted without its colour profile; of an
    animation or a many-page file the first picture is taken.

    Args:
        channels: 1 for grey, 3 for RGB.
        background: RGB, 0 to 255, behind transparent parts.
    """

    channels: Channels = 3
    background: Color = (255, 255, 255)
    label_maps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "background", tuple(self.background))  # lists in settings

    def __str__(self) -> str:
        return "grey" if self.channels == 1 else "RGB"

    @decoding()
    def read(self, file: File, name: str = "the image") -> Image.Image:
        """Decodes a file to mode `L` or `RGB`; raises `BrokenImageError`."""
        with Image.open(file) as opened:
            opened.load()
            image = _to_eight_bit(_upright(opened))
            if image.has_transparency_data:
                canvas = Image.new("RGBA", image.size, (*self.background, 255))
                image = Image.alpha_composite(canvas, image.convert("RGBA"))
            return image.convert("L" if self.channels == 1 else "RGB")

    def tensor(self, image: Image.Image) -> torch.Tensor:
        """Turns a picture into `(c H W)` in [-1, 1], black to white."""
        pixels = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1)
        return pixels.permute(2, 0, 1).to(torch.float32).div(127.5).sub(1.0).contiguous()


@decoding()
def header_size(file: File) -> tuple[int, int]:
    """Reads (height, width) in pixels after EXIF rotation, without decoding the picture."""
    with Image.open(file) as opened:
        width, height = opened.size
        # 5 to 8 swap the sides. A PNG's needs decoding, and a TIFF's Pillow has swapped.
        readable = opened.format not in ("PNG", "TIFF")
        turned = readable and opened.getexif().get(ExifTags.Base.Orientation, 1) >= 5
        opened.verify()
    return (width, height) if turned else (height, width)


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
