"""From an 8-bit image of any size to a tensor of one size, with or without augmentation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from PIL import Image, ImageOps

from taming.data.images import Color
from taming.errors import UserError

__all__ = ["Crop", "ImageTransform", "Resize", "View", "as_color"]

Resize = Literal["shorter_side", "stretch", "enlarge", "none"]
Crop = Literal["center", "random", "none"]

Window = tuple[float, float, float, float]


class View(NamedTuple):
    """What is shown of an image: drawn once, it serves an image and what belongs to it.

    Attributes:
        window: (left, top, right, bottom) of the part that becomes the result, in pixels.
        mirrored: whether left and right are exchanged.
        offset: pixels of the result to the right and down that it is moved by.
    """

    window: Window
    mirrored: bool = False
    offset: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """Resizes, crops and augments; the deterministic version differs only in what is drawn.

    The steps, in this order:

    1. `pad` pixels of `fill` on every side.
    2. `resize` and `crop`. A *window* of the image becomes the result:

       - `shorter_side`: the window has the shape of `resolution` and is as large as fits. With
         `crop="center"` it lies in the middle. With `crop="random"` each side is shrunk by a
         factor drawn uniformly from `crop_scale` and the place is drawn too, so that
         `crop_scale=(1, 1)` moves along the longer side only. It is resized with an antialiased
         Lanczos filter.
       - `stretch`: the window is the whole image (`crop="none"`), resized with the same filter; the
         aspect is not kept.
       - `enlarge`: the whole image (`crop="none"`), each pixel repeated a whole number of times.
       - `none`: the window has exactly `resolution` pixels: in the middle, anywhere, or, with
         `crop="none"`, the image must have that size.
    3. Training only: a mirror image every other time, if `horizontal_flip`.
    4. Training only: a move by up to `random_shift` result pixels along each axis; `fill` follows.

    Args:
        resolution: pixels of the result, a number (square) or (height, width).
        resize: see above.
        crop: see above; without augmentation, `random` means `center` and the largest window.
        crop_scale: smallest and largest factor for a random window; read only where
            `resize="shorter_side"` and `crop="random"`.
        horizontal_flip: whether to mirror.
        random_shift: pixels.
        pad: pixels.
        fill: RGB, 0 to 255, for `pad` and `random_shift`; a grey image takes its luma.

    Raises:
        UserError: for values that make no sense together.
    """

    resolution: int | Sequence[int]
    resize: Resize
    crop: Crop
    crop_scale: Sequence[float] = (1.0, 1.0)
    horizontal_flip: bool = False
    random_shift: int = 0
    pad: int = 0
    fill: Sequence[int] = (0, 0, 0)

    def __post_init__(self) -> None:
        given = self.resolution
        pair = (given, given) if isinstance(given, int) else tuple(given)
        if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
            raise UserError(f"resolution is {given}: give pixels, one number or [height, width].")
        object.__setattr__(self, "resolution", pair)
        object.__setattr__(self, "crop_scale", tuple(self.crop_scale))
        object.__setattr__(self, "fill", as_color(self.fill, "fill"))
        for name, value, allowed in (
            ("resize", self.resize, get_args(Resize)),
            ("crop", self.crop, get_args(Crop)),
        ):
            if value not in allowed:
                raise UserError(f"{name} is {value!r}: choose one of {', '.join(allowed)}.")
        if self.resize in ("stretch", "enlarge") and self.crop != "none":
            raise UserError(
                f"resize={self.resize} takes the whole image: set crop=none, not crop={self.crop}."
            )
        if self.resize == "shorter_side" and self.crop == "none":
            raise UserError(
                "resize=shorter_side leaves the longer side too long: set crop=center or "
                "crop=random, or resize=stretch to change the aspect."
            )
        if len(self.crop_scale) != 2 or not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise UserError(
                f"crop_scale is {list(self.crop_scale)}: give [smallest, largest], above 0 and "
                "at most 1."
            )
        if self.random_shift < 0 or self.pad < 0:
            raise UserError("random_shift and pad are pixels: 0 or more.")

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the result in pixels."""
        return cast(tuple[int, int], self.resolution)

    def __call__(
        self, image: Image.Image, rng: np.random.Generator | None = None, name: str = "the image"
    ) -> torch.Tensor:
        """Transforms one image.

        Args:
            image: mode `L` or `RGB`.
            rng: draws the augmentation; None for the deterministic version.
            name: what to call the image in an error.

        Returns:
            float32 `(c H W)` in [-1, 1], c is 1 or 3.

        Raises:
            UserError: if the image's size does not suit the settings.
        """
        size = image.height, image.width
        self.check_size(size, name)
        return self.show(image, self.view(size, rng))

    def item(
        self, loaded: Any, rng: np.random.Generator | None = None, name: str = "the image"
    ) -> dict[str, torch.Tensor]:
        """What a source loaded as an item of a data set: here `images`, the transformed image."""
        return {"images": self(loaded, rng, name)}

    def view(self, size: tuple[int, int], rng: np.random.Generator | None = None) -> View:
        """What to show of an image of this (height, width); draws only with `rng`."""
        window = self._window((size[0] + 2 * self.pad, size[1] + 2 * self.pad), rng)
        if rng is None:
            return View(window)
        mirrored = self.horizontal_flip and bool(rng.integers(2))
        if self.random_shift == 0:
            return View(window, mirrored)
        right, down = rng.integers(-self.random_shift, self.random_shift + 1, size=2)
        return View(window, mirrored, (int(right), int(down)))

    def show(self, image: Image.Image, view: View) -> torch.Tensor:
        """A view of an image as a tensor, as `__call__` returns it."""
        if self.pad:
            image = ImageOps.expand(image, self.pad, self._fill(image))
        height, width = self.size
        if all(float(side).is_integer() for side in view.window):
            left, top, right, bottom = (int(side) for side in view.window)
            image = image.crop((left, top, right, bottom)).resize((width, height), self._resampling)
        else:
            image = image.resize((width, height), self._resampling, box=view.window)
        if view.mirrored:
            image = ImageOps.mirror(image)
        if view.offset != (0, 0):
            canvas = Image.new(image.mode, image.size, self._fill(image))
            canvas.paste(image, view.offset)
            image = canvas
        return self._to_tensor(image)

    def check_size(self, size: tuple[int, int], name: str) -> None:
        """Raises a `UserError` naming the image if one of this (height, width) cannot be used."""
        height, width = (side + 2 * self.pad for side in size)
        target_height, target_width = self.size
        padded = f" ({height}x{width} with pad={self.pad})" if self.pad else ""
        problem = (
            f"{name} is {size[0]}x{size[1]} pixels (height x width){padded}, "
            f"resolution is {target_height}x{target_width}: "
        )
        if self.resize == "enlarge":
            factor = target_height // height
            if factor < 1 or (height * factor, width * factor) != self.size:
                raise UserError(
                    f"{problem}resize=enlarge repeats pixels a whole number of times, so "
                    f"resolution must be a multiple of {height}x{width}. Change it, or pad, "
                    "or resize=stretch."
                )
        elif self.resize == "none":
            if self.crop == "none" and (height, width) != self.size:
                raise UserError(f"{problem}resize=none with crop=none needs images of that size.")
            if height < target_height or width < target_width:
                raise UserError(
                    f"{problem}it is too small to crop. Use a smaller resolution, "
                    "resize=shorter_side, or leave small images out."
                )

    def magnifies(self, size: tuple[int, int]) -> bool:
        """Whether an image of this (height, width) must be resized up, and turns out soft."""
        too_small = any(
            side + 2 * self.pad < target for side, target in zip(size, self.size, strict=True)
        )
        return self.resize in ("shorter_side", "stretch") and too_small

    @property
    def augments(self) -> bool:
        """Whether anything is drawn in training: if not, each image has one view only."""
        return self.crop == "random" or self.horizontal_flip or self.random_shift > 0

    def kind(self, channels: int) -> str:
        """What images of so many channels are, for people; a `UserError` if there are none."""
        if channels not in (1, 3):
            raise UserError(f"data.channels is {channels}: 1 for grey or 3 for RGB.")
        return "RGB" if channels == 3 else "grey"

    @property
    def noun(self) -> str:
        """What items of the data set are called, in the plural."""
        return "images"

    @property
    def _resampling(self) -> Image.Resampling:
        filtered = self.resize in ("shorter_side", "stretch")
        return Image.Resampling.LANCZOS if filtered else Image.Resampling.NEAREST

    def _to_tensor(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1)
        return pixels.permute(2, 0, 1).to(torch.float32).div(127.5).sub(1.0).contiguous()

    def _window(self, size: tuple[int, int], rng: np.random.Generator | None) -> Window:
        """(left, top, right, bottom) of the part of a padded image that becomes the result."""
        if self.crop == "none":
            return 0, 0, size[1], size[0]
        height, width = self.size
        if self.resize == "shorter_side":
            scale = min(size[0] / height, size[1] / width)
            if rng is not None and self.crop == "random":
                scale *= rng.uniform(self.crop_scale[0], self.crop_scale[1])
            height = min(max(round(height * scale), 1), size[0])
            width = min(max(round(width * scale), 1), size[1])
        room_y, room_x = size[0] - height, size[1] - width
        if rng is not None and self.crop == "random":
            top, left = int(rng.integers(room_y + 1)), int(rng.integers(room_x + 1))
        else:
            top, left = room_y // 2, room_x // 2
        return left, top, left + width, top + height

    def _fill(self, image: Image.Image) -> Color | int:
        color = cast(Color, self.fill)
        if image.mode == "RGB":
            return color
        return cast(int, Image.new("RGB", (1, 1), color).convert("L").getpixel((0, 0)))


def as_color(value: Sequence[int], key: str) -> Color:
    """Three numbers from 0 to 255 as a tuple; a `UserError` naming `key` for anything else."""
    color = tuple(value) if isinstance(value, Sequence) else ()
    if len(color) != 3 or not all(isinstance(n, int) and 0 <= n <= 255 for n in color):
        raise UserError(f"{key} is {value}: give red, green and blue, each 0 to 255.")
    return color[0], color[1], color[2]
