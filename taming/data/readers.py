"""Readers of image files: pictures as 8-bit grey or RGB, label maps as class numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from annotated_types import Ge, Le
from PIL import ExifTags, Image, ImageOps

from taming.data.files import SUFFIXES
from taming.runtime.errors import UserError

__all__ = ["AnyImage", "BrokenImageError", "Channels", "LabelMapReader",
    "PictureReader", "Planes", "Reader", "decoding", "header_size", "one_hot",
    "open_image"]  # fmt: skip

Channels = Literal[1, 3]
Byte = Annotated[int, Ge(0), Le(255)]
Color = tuple[Byte, Byte, Byte]  # red, green and blue
File = str | Path | IO[bytes]
ONE_CHANNEL = ("1", "L", "P", "I", "I;16", "I;16B")
# Pillow has more formats, and starts other programs for some of them
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 64_000_000  # decoding such an image takes less than 1 GiB


@dataclass(frozen=True)
class Planes:
    """An image with any number of channels, each a Pillow image of mode `F`, 0 to 1."""

    channels: tuple[Image.Image, ...]

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return self.channels[0].width

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return self.channels[0].height


AnyImage = Image.Image | Planes


class BrokenImageError(UserError):
    """A file that cannot be decoded as an image; the message is the reason alone."""


class Reader(Protocol):
    """Decodes image files of one kind, and turns the images into tensors.

    Attributes:
        suffixes: the endings of the files.
    """

    suffixes: ClassVar[frozenset[str]]

    @property
    def channels(self) -> int:
        """Channels of the tensors; the number of classes of label maps."""

    @property
    def label_maps(self) -> bool:
        """Whether pixel values are class numbers."""

    def read(self, file: File, name: str, least_side: int | None = None) -> AnyImage:
        """Decodes a file; raises `BrokenImageError`.

        Args:
            file: a path or an open file.
            name: the name of the file in error messages.
            least_side: allows a smaller image than in the file, with no side smaller than this.
        """

    def tensor(self, image: Any) -> torch.Tensor:
        """Turns an image of this kind into float32 `(c H W)`."""


@contextmanager
def decoding() -> Iterator[None]:
    """Turns any error that a decoder raises on a damaged file into a `BrokenImageError`."""
    try:
        yield
    except UserError:
        raise
    except Image.UnidentifiedImageError as error:
        raise BrokenImageError("not an image of a known format") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise BrokenImageError(reason) from error


@contextmanager
def open_image(file: File) -> Iterator[Image.Image]:
    """Opens an image of a known format without decoding it; raises if it is too large."""
    with Image.open(file, formats=FORMATS) as opened:
        if opened.width * opened.height > MAX_PIXELS:
            raise BrokenImageError(
                f"{opened.width}×{opened.height} pixels, and at most {MAX_PIXELS:,} can be read"
            )
        yield opened


@dataclass(frozen=True)
class PictureReader:
    """Reads a file as the picture that a viewer shows.

    It applies EXIF rotation, resolves palettes, puts `background` behind transparent parts, scales
    16-bit grey to 8 bits by 255/65535 and converts CMYK without its colour profile. It reads the
    first picture of an animation or of a file with many pages.

    Args:
        channels: 1 for grey, 3 for RGB.
        background: RGB, 0 to 255, behind transparent parts.
    """

    channels: Channels = 3
    background: Color = (255, 255, 255)
    label_maps: ClassVar[bool] = False
    suffixes: ClassVar[frozenset[str]] = SUFFIXES

    def __post_init__(self) -> None:
        # a list in the settings; the repr identifies token caches
        object.__setattr__(self, "background", tuple(self.background))

    def __str__(self) -> str:
        return "grey" if self.channels == 1 else "RGB"

    @decoding()
    def read(
        self, file: File, name: str = "the image", least_side: int | None = None
    ) -> Image.Image:
        """Decodes a file to mode `L` or `RGB`; raises `BrokenImageError`.

        With a `least_side`, a JPEG is decoded at a half, a quarter or an eighth of its size if no
        side becomes smaller than that. This is several times as fast.
        """
        with open_image(file) as opened:
            if least_side is not None:
                opened.draft(None, (least_side, least_side))
            opened.load()
            with suppress(Exception):  # damaged EXIF in a file with an intact picture
                ImageOps.exif_transpose(opened, in_place=True)
            image = _to_eight_bit(opened)
            if image.has_transparency_data:
                image = Image.alpha_composite(
                    Image.new("RGBA", image.size, (*self.background, 255)),
                    image if image.mode == "RGBA" else image.convert("RGBA"),
                )
            return image.convert("L" if self.channels == 1 else "RGB")

    def tensor(self, image: Image.Image) -> torch.Tensor:
        """Turns a picture into `(c H W)` in [-1, 1], black to white."""
        pixels = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1)
        return pixels.permute(2, 0, 1).to(torch.float32).div(127.5).sub(1.0).contiguous()


@dataclass(frozen=True)
class LabelMapReader:
    """Reads class numbers: a pixel's value, grey or palette index, is its class.

    Args:
        num_classes: number of classes, including the class of unlabelled pixels.
        unlabelled: pixel value of unlabelled pixels; None if all are labelled.
        unlabelled_class: class of unlabelled pixels; None for a separate class, the last.
        palette: red, green and blue, 0 to 255, of each class for pictures; None for generated
            colours.
    """

    num_classes: Annotated[int, Ge(2), Le(256)]
    unlabelled: int | None = 255
    unlabelled_class: int | None = None
    palette: Sequence[Color] | None = field(default=None, repr=False)
    label_maps: ClassVar[bool] = True
    suffixes: ClassVar[frozenset[str]] = SUFFIXES

    def __post_init__(self) -> None:
        if not 0 <= (self.unlabelled_class or 0) < self.num_classes:
            raise UserError(
                f"unlabelled_class={self.unlabelled_class} does not exist. The {self.num_classes} "
                f"classes are 0 to {self.num_classes - 1}."
            )
        if self.palette is not None and len(self.palette) < self.num_classes:
            raise UserError(
                f"the palette has {len(self.palette)} colours for {self.num_classes} classes."
            )

    def __str__(self) -> str:
        return f"label maps of {self.num_classes} classes"

    @property
    def channels(self) -> int:
        """Channels of the tensors: one per class."""
        return self.num_classes

    @decoding()
    def read(self, file: File, name: str, least_side: int | None = None) -> Image.Image:
        """Decodes a file to class numbers, an image of mode `P`, at its original size.

        Raises:
            BrokenImageError: if it cannot be decoded completely.
            UserError: if it is not a label map, or has other classes.
        """
        with open_image(file) as opened:
            opened.load()
            if opened.mode not in ONE_CHANNEL or opened.format == "JPEG":
                raise UserError(
                    f"{name} is a {opened.format} picture of mode {opened.mode}, not a label map. "
                    "A label map has one channel (grey or palette) of class numbers. Set the "
                    "folder of the label maps (subfolder, or condition_folder of pairs)."
                )
            classes = self._class_numbers(np.asarray(opened), name)
        return Image.frombytes("P", classes.shape[::-1], classes.tobytes())

    def _class_numbers(self, values: np.ndarray, name: str) -> np.ndarray:
        """Maps pixel values `(H W)` to class numbers, uint8 `(H W)`."""
        classes = values.astype(np.int64)
        last = self.num_classes - 1
        empty = classes == self.unlabelled  # all False if that is None
        if empty.any():
            separate = self.unlabelled_class is None and self.unlabelled != last
            if separate and (classes == last).any():
                raise UserError(
                    f"{name} has unlabelled pixels ({self.unlabelled}), which become the last "
                    f"class, {last}, but other pixels already have class {last}. Raise the number "
                    "of classes by one, or set an unlabelled_class."
                )
            classes[empty] = last if self.unlabelled_class is None else self.unlabelled_class
        for value in (classes.min(), classes.max()):
            if not 0 <= value <= last:
                raise UserError(
                    f"{name} has a pixel of value {value}, but there are only {self.num_classes} "
                    f"classes, 0 to {last}. Correct their number, or set unlabelled={value} if it "
                    "marks unlabelled pixels."
                )
        return classes.astype(np.uint8)

    def tensor(self, image: Image.Image) -> torch.Tensor:
        """Turns class numbers into one-hot `(c H W)` of 0 and 1."""
        return one_hot(torch.from_numpy(np.array(image)), self.num_classes)


def one_hot(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Encodes class numbers `(… H W)` of any integer type as float32 `(… c H W)` of 0 and 1."""
    # not F.one_hot: its values are int64, and its channels lie last in memory
    shape = (*classes.shape[:-2], num_classes, *classes.shape[-2:])
    return torch.zeros(shape, device=classes.device).scatter_(-3, classes.long().unsqueeze(-3), 1.0)


@decoding()
def header_size(file: File) -> tuple[int, int]:
    """Reads (height, width) in pixels after EXIF rotation, without decoding the picture."""
    with open_image(file) as opened:
        width, height = opened.size
        # 5 to 8 swap the sides. Pillow has done so for a TIFF, and must decode a PNG to tell.
        readable = opened.format not in ("PNG", "TIFF")
        turned = readable and opened.getexif().get(ExifTags.Base.Orientation, 1) >= 5
        opened.verify()
    return (width, height) if turned else (height, width)


def _to_eight_bit(image: Image.Image) -> Image.Image:
    if image.mode == "LAB":
        return image.convert("RGB")  # Pillow converts it to no other mode
    if not image.mode.startswith(("I", "F")):
        return image
    samples = np.asarray(image)
    limit = 1.0 if image.mode == "F" else 65535.0
    if not np.isfinite(samples).all() or samples.min() < 0 or samples.max() > limit:
        raise ValueError(f"samples of mode {image.mode} outside 0 to {limit:g}: unknown range")
    scaled = np.multiply(samples, 255.0 / limit, dtype=np.float32)
    grey = Image.fromarray(np.round(scaled, out=scaled).astype(np.uint8))
    if (transparent := image.info.get("transparency")) is not None:  # a 16-bit value
        grey.putalpha(Image.fromarray(samples != transparent).convert("L"))
    return grey
