"""Images and label maps as pictures people look at."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw

from taming.errors import UserError

__all__ = [
    "as_palette",
    "condition_grid",
    "image_grid",
    "pixel_grid",
    "reconstruction_grid",
    "to_uint8",
]

GAP = 2
LINE = 14  # pixels of a caption's line
INK, PAPER = (30, 30, 30), (255, 255, 255)


def to_uint8(images: torch.Tensor, palette: np.ndarray | None = None) -> np.ndarray:
    """Pictures or label maps `(b c H W)` to uint8 `(b H W 3)`.

    With a palette, or more channels than a picture has, they are label maps, one-hot or logits:
    each pixel gets the colour of its largest channel's class.

    Args:
        images: pictures in [-1, 1], c of 1 or 3, clamped; or label maps.
        palette: uint8 `(c 3)`, see `as_palette`; None for the generated one.
    """
    if palette is not None or images.shape[1] not in (1, 3):
        palette = as_palette(None, images.shape[1]) if palette is None else palette
        return palette[images.argmax(1).cpu().numpy()]
    images = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()


def as_palette(colors: Sequence[Sequence[int]] | None, num_classes: int) -> np.ndarray:
    """A colour for each class, uint8 `(num_classes 3)`.

    Args:
        colors: red, green and blue, 0 to 255, by class; further ones are left out. None for the
            colours of PASCAL VOC (Everingham et al. 2010), up to 256, all distinct: the bits of the
            class number are dealt out to red, green and blue in turn, the lowest to the brightest.
        num_classes: how many.

    Raises:
        UserError: if they are too few, or no colours.
    """
    if colors is None:
        numbers = np.arange(num_classes)[:, None]
        bits = [(numbers >> (3 * i + np.arange(3)) & 1) << (7 - i) for i in range(8)]
        return np.sum(bits, 0).astype(np.uint8)
    if len(colors) < num_classes:
        raise UserError(
            f"the palette has {len(colors)} colours for {num_classes} classes: give one a class."
        )
    for color in colors:
        if len(color) != 3 or not all(isinstance(n, int) and 0 <= n <= 255 for n in color):
            raise UserError(
                f"the palette's {color} is no colour: give red, green and blue, each 0 to 255."
            )
    return np.array(colors[:num_classes], dtype=np.uint8)


def image_grid(
    images: torch.Tensor,
    num_columns: int | None = None,
    captions: Sequence[str] | None = None,
    min_side: int = 48,
    palette: np.ndarray | None = None,
) -> Image.Image:
    """Lays pictures or label maps out in rows, each under its caption if there are captions.

    `images` `(b c H W)` and `palette` are as for `to_uint8`. Small images are enlarged by a whole
    factor to at least `min_side` pixels, to be seen. A caption may have several lines; what is too
    wide for its picture is cut off.
    """
    return pixel_grid(to_uint8(images, palette), num_columns, captions, min_side)


def pixel_grid(
    pixels: np.ndarray,
    num_columns: int | None = None,
    captions: Sequence[str] | None = None,
    min_side: int = 48,
) -> Image.Image:
    """`image_grid` of uint8 `(b H W 3)`."""
    height, width = pixels.shape[1:3]
    factor = max(1, math.ceil(min_side / min(height, width)))
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    height, width = height * factor, width * factor
    num_columns = num_columns or math.ceil(math.sqrt(len(pixels)))
    num_rows = math.ceil(len(pixels) / num_columns)
    num_lines = max(caption.count("\n") + 1 for caption in captions) if captions else 0
    caption_height = num_lines * LINE
    cell_height, cell_width = height + caption_height + GAP, width + GAP
    canvas = Image.new("RGB", (num_columns * cell_width + GAP, num_rows * cell_height + GAP), PAPER)
    draw = ImageDraw.Draw(canvas)
    for index, picture in enumerate(pixels):
        left = GAP + (index % num_columns) * cell_width
        top = GAP + (index // num_columns) * cell_height
        if captions:
            for number, line in enumerate(captions[index].split("\n")):
                place = (left + 1, top + number * LINE)
                draw.text(place, line[: max(1, width // 6)], fill=INK)
        canvas.paste(Image.fromarray(picture), (left, top + caption_height))
    return canvas


def condition_grid(
    conditions: torch.Tensor,
    samples: torch.Tensor,
    images: torch.Tensor | None = None,
    palette: np.ndarray | None = None,
) -> Image.Image:
    """Each condition, what was made of it and, where it is known, the real image, side by side.

    Args:
        conditions: `(b c H W)`, resized to the samples' size; as for `to_uint8`, with the palette.
        samples: `(b c H' W')`.
        images: likewise; or None.
        palette: of conditions that are label maps.
    """
    size = samples.shape[2], samples.shape[3]
    shown = F.interpolate(conditions.float(), size, mode="nearest-exact")
    columns = [to_uint8(shown, palette), to_uint8(samples)]
    columns += [] if images is None else [to_uint8(images)]
    pixels = np.stack(columns, 1).reshape(-1, *size, 3)
    groups_a_row = 1 if len(samples) < 4 else 2
    return pixel_grid(pixels, num_columns=len(columns) * groups_a_row)


def reconstruction_grid(
    images: torch.Tensor, reconstructions: torch.Tensor, palette: np.ndarray | None = None
) -> Image.Image:
    """Images and their reconstructions, side by side, four pairs a row.

    Both are `(b c H W)`, and as for `to_uint8`, like `palette`.
    """
    pairs = torch.stack([images.float().cpu(), reconstructions.float().cpu()], 1).flatten(0, 1)
    return image_grid(pairs, num_columns=min(8, len(pairs)), palette=palette)
