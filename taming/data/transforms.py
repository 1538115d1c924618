"""Images of any size resized, cropped and augmented to one size."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, cast

import numpy as np
from annotated_types import Ge, Gt, Le
from PIL import Image, ImageOps

from taming.data.readers import AnyImage, Planes
from taming.runtime.errors import UserError

__all__ = ["Crop", "ImageTransform", "Resize"]

Resize = Literal["shorter_side", "stretch", "enlarge", "none"]
Crop = Literal["center", "random", "none"]
Pixels = Annotated[int, Ge(1)]
Resolution = Pixels | tuple[Pixels, Pixels]
Share = Annotated[float, Gt(0), Le(1)]
Window = tuple[float, float, float, float]  # (left, top, right, bottom) in pixels

DRAFT_SCALE = 2  # times the result; the filter then hides how the JPEG was reduced


class View(NamedTuple):
    """The part of an image, and of its condition, that becomes the result.

    Attributes:
        window: the part.
        mirrored: whether left and right are exchanged.
        offset: shift of the result to the right and down in pixels.
    """

    window: Window
    mirrored: bool = False
    offset: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """Resizes, crops and augments; deterministic without a random generator.

    The steps, in this order:

    1. `pad` black pixels on every side.
    2. `resize` and `crop`. A *window* of the image becomes the result:

       - `shorter_side`: the window has the shape of `resolution` and is as large as possible. With
         `crop="center"` it is in the middle. With `crop="random"` its sides are multiplied by a
         factor drawn uniformly from `crop_scale`, and its place is drawn too, so that
         `crop_scale=(1, 1)` moves along the longer side only. An antialiased Lanczos filter
         resizes it.
       - `stretch`: the window is the whole image (`crop="none"`). The same filter resizes it and
         changes its aspect ratio.
       - `enlarge`: the window is the whole image (`crop="none"`). Each pixel is repeated a whole
         number of times.
       - `none`: the window has exactly `resolution` pixels, in the middle or at a random place.
         With `crop="none"` the image must have that size.
    3. Training only: with `horizontal_flip`, half of the images are mirrored.
    4. Training only: the result moves by up to `random_shift` pixels along each axis, over black.

    Resizing picks pixels of label maps, which are images of mode `P`, and never mixes them.

    Args:
        resolution: pixels of the result, a number (square) or (height, width).
        resize: see above.
        crop: see above; without augmentation, `random` means `center` and the largest window.
        crop_scale: smallest and largest factor for a random window, with `resize="shorter_side"`.
        horizontal_flip: whether to mirror.
        random_shift: pixels; for pictures without conditions only, like `pad`.
        pad: pixels.
        condition_resolution: pixels of a condition, with equal aspect ratio; None for `resolution`.
        draft: whether training decodes JPEGs at a half, a quarter or an eighth of their size, if
            every window still has twice the pixels of the result along each side. Images with
            conditions are always decoded at full size.

    Raises:
        UserError: if values contradict each other.
    """

    resolution: Resolution
    resize: Resize
    crop: Crop
    crop_scale: tuple[Share, Share] = (1.0, 1.0)
    horizontal_flip: bool = False
    random_shift: Annotated[int, Ge(0)] = 0
    pad: Annotated[int, Ge(0)] = 0
    condition_resolution: Resolution | None = None
    draft: bool = False

    def __post_init__(self) -> None:
        # as tuples of two; the repr identifies token caches
        for name in ("resolution", "condition_resolution", "crop_scale"):
            value = getattr(self, name)
            if isinstance(value, int):
                value = value, value
            object.__setattr__(self, name, None if value is None else tuple(value))
        if self.resize in ("stretch", "enlarge") and self.crop != "none":
            raise UserError(f"resize={self.resize} uses the whole image: set crop=none.")
        if self.resize == "shorter_side" and self.crop == "none":
            raise UserError(
                "resize=shorter_side needs crop=center or crop=random; only resize=stretch and "
                "resize=enlarge use the whole image."
            )
        if self.crop_scale[0] > self.crop_scale[1]:
            raise UserError(f"crop_scale is {list(self.crop_scale)}: give [smallest, largest].")
        (height, width), (condition_height, condition_width) = self.size, self.condition_size
        if height * condition_width != width * condition_height:
            raise UserError(
                f"condition_resolution is {condition_height}x{condition_width} and resolution "
                f"{height}x{width}. Both must have the same aspect ratio."
            )

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the result in pixels."""
        return cast(tuple[int, int], self.resolution)

    @property
    def condition_size(self) -> tuple[int, int]:
        """(height, width) of a condition in pixels."""
        return cast(tuple[int, int], self.condition_resolution or self.resolution)

    @property
    def least_side(self) -> int | None:
        """Pixels that each side of a draft must have; None if drafts are not possible."""
        if not self.draft or self.pad or self.resize not in ("shorter_side", "stretch"):
            return None
        return math.ceil(DRAFT_SCALE * max(self.size) / self.crop_scale[0])

    @property
    def augments(self) -> bool:
        """Whether training draws random numbers; otherwise each image has only one view."""
        return self.crop == "random" or self.horizontal_flip or self.random_shift > 0

    def __call__(self, image: AnyImage, rng: np.random.Generator | None = None) -> AnyImage:
        """Transforms an image of mode `L`, `RGB` or `F`, or `P` for a label map.

        `rng` draws the augmentation; None disables it.
        """
        size = image.height, image.width
        self.check_size(size)
        return self._render(image, self._view(size, rng), self.size)

    def pair(
        self, image: AnyImage, condition: AnyImage, rng: np.random.Generator | None = None
    ) -> tuple[AnyImage, AnyImage]:
        """Transforms an image and its condition of the same aspect ratio, with the same view."""
        size, condition_size = (image.height, image.width), (condition.height, condition.width)
        self.check_size(size)
        check_same_shape(size, condition_size)
        view = self._view(size, rng)
        left, top, right, bottom = view.window
        y, x = condition_size[0] / size[0], condition_size[1] / size[1]
        scaled = view._replace(window=(left * x, top * y, right * x, bottom * y))
        condition = self._render(condition, scaled, self.condition_size)
        return self._render(image, view, self.size), condition

    def check_size(self, size: tuple[int, int]) -> None:
        """Raises a `UserError` if an image of this (height, width) cannot be used."""
        height, width = (side + 2 * self.pad for side in size)
        factor = self.size[0] // height
        if self.resize == "enlarge" and (
            factor < 1 or (height * factor, width * factor) != self.size
        ):
            problem = (
                f"resize=enlarge needs a multiple of {height}x{width}. Change it, or pad, or "
                "resize=stretch."
            )
        elif self.resize == "none" and self.crop == "none" and (height, width) != self.size:
            problem = "resize=none with crop=none needs images of that size."
        elif self.resize == "none" and (height < self.size[0] or width < self.size[1]):
            problem = "it is too small to crop. Use a smaller resolution, or resize=shorter_side."
        else:
            return
        padded = f" ({height}x{width} with pad={self.pad})" if self.pad else ""
        raise UserError(
            f"an image of {size[0]}x{size[1]} pixels (height x width){padded} does not fit "
            f"resolution {self.size[0]}x{self.size[1]}: {problem}"
        )

    def magnifies(self, size: tuple[int, int]) -> bool:
        """Whether an image of this (height, width) would be enlarged and look soft."""
        too_small = size[0] + 2 * self.pad < self.size[0] or size[1] + 2 * self.pad < self.size[1]
        return self.resize in ("shorter_side", "stretch") and too_small

    def _view(self, size: tuple[int, int], rng: np.random.Generator | None) -> View:
        """Draws the view of an image of this (height, width)."""
        window = self._window((size[0] + 2 * self.pad, size[1] + 2 * self.pad), rng)
        mirrored = rng is not None and self.horizontal_flip and bool(rng.integers(2))
        if rng is None or self.random_shift == 0:
            return View(window, mirrored)
        right, down = rng.integers(-self.random_shift, self.random_shift + 1, size=2)
        return View(window, mirrored, (int(right), int(down)))

    def _render(self, image: AnyImage, view: View, size: tuple[int, int]) -> AnyImage:
        if isinstance(image, Planes):
            return Planes(tuple(self._cut_out(c, view, size) for c in image.channels))
        return self._cut_out(image, view, size)

    def _cut_out(self, image: Image.Image, view: View, size: tuple[int, int]) -> Image.Image:
        if self.pad:
            image = ImageOps.expand(image, self.pad)
        filtered = self.resize in ("shorter_side", "stretch") and image.mode != "P"
        resampling = Image.Resampling.LANCZOS if filtered else Image.Resampling.NEAREST
        height, width = size
        if all(float(side).is_integer() for side in view.window):
            left, top, right, bottom = (int(side) for side in view.window)
            image = image.crop((left, top, right, bottom)).resize((width, height), resampling)
        else:
            image = image.resize((width, height), resampling, box=view.window)
        if view.mirrored:
            image = ImageOps.mirror(image)
        if view.offset != (0, 0):
            canvas = Image.new(image.mode, image.size)
            canvas.paste(image, view.offset)
            image = canvas
        return image

    def _window(self, size: tuple[int, int], rng: np.random.Generator | None) -> Window:
        """Draws the part of a padded image of this size that becomes the result."""
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


def check_same_shape(size: tuple[int, int], condition_size: tuple[int, int]) -> None:
    """Raises a `UserError` unless two sizes have the same aspect ratio, up to one pixel."""
    (height, width), (condition_height, condition_width) = size, condition_size
    scale = condition_width / width
    if abs(condition_height - height * scale) > max(1.0, scale):
        raise UserError(
            f"an image of {height}x{width} pixels (height x width) has a condition of "
            f"{condition_height}x{condition_width}. Both must have the same aspect ratio."
        )
