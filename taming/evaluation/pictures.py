"""Images as pictures people look at."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw

__all__ = ["image_grid", "reconstruction_grid", "to_uint8"]

GAP = 2
INK, PAPER = (30, 30, 30), (255, 255, 255)


def to_uint8(images: torch.Tensor) -> np.ndarray:
    """`(b c H W)` in [-1, 1], c of 1 or 3, clamped, to uint8 `(b H W 3)`."""
    images = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()


def image_grid(
    images: torch.Tensor,
    num_columns: int | None = None,
    captions: Sequence[str] | None = None,
    min_side: int = 48,
) -> Image.Image:
    """Lays `(b c H W)` in [-1, 1] out in rows, each under its caption if there are captions.

    Small images are enlarged by a whole factor to at least `min_side` pixels, to be seen.
    """
    pixels = to_uint8(images)
    height, width = pixels.shape[1:3]
    factor = max(1, math.ceil(min_side / min(height, width)))
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    height, width = height * factor, width * factor
    num_columns = num_columns or math.ceil(math.sqrt(len(pixels)))
    num_rows = math.ceil(len(pixels) / num_columns)
    caption_height = 14 if captions else 0
    cell_height, cell_width = height + caption_height + GAP, width + GAP
    canvas = Image.new("RGB", (num_columns * cell_width + GAP, num_rows * cell_height + GAP), PAPER)
    draw = ImageDraw.Draw(canvas)
    for index, picture in enumerate(pixels):
        left = GAP + (index % num_columns) * cell_width
        top = GAP + (index // num_columns) * cell_height
        if captions:
            draw.text((left + 1, top), captions[index][: max(1, width // 6)], fill=INK)
        canvas.paste(Image.fromarray(picture), (left, top + caption_height))
    return canvas


def reconstruction_grid(images: torch.Tensor, reconstructions: torch.Tensor) -> Image.Image:
    """Images and their reconstructions, both `(b c H W)`, side by side, four pairs a row."""
    pairs = torch.stack([images.float().cpu(), reconstructions.float().cpu()], 1).flatten(0, 1)
    return image_grid(pairs, num_columns=min(8, len(pairs)))
