"""Pictures of codes, attention and surprise over an image."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from taming.generation import ImageGenerator, attention_maps, codes_alone, token_surprise
from taming.pictures import palette_of, pixel_grid, to_uint8
from taming.report.images import on_image, tiled
from taming.tokenizer import VQGAN

__all__ = ["attention_picture", "codes_picture", "enlarge", "mark_code", "single_codes",
    "surprise_picture"]  # fmt: skip

SIDE = 384  # pixels of a picture to click on, at least
TILE = 96  # pixels of an attention map, at least
SELECTED, SAME = np.array([255, 40, 40]), np.array([255, 200, 0])  # colours of frames


def enlarge(pixels: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Enlarges `(H W 3)` by a whole factor to at least `side` pixels."""
    factor = max(1, math.ceil(side / max(pixels.shape[:2])))
    return pixels.repeat(factor, 0).repeat(factor, 1)


def single_codes(vqgan: VQGAN, codes: Tensor) -> np.ndarray:
    """Returns what codes `(k,)` decode to alone, uint8 `(k f f 3)`."""
    return to_uint8(codes_alone(vqgan, codes), palette_of(vqgan))


def codes_picture(vqgan: VQGAN, indices: Tensor) -> np.ndarray:
    """Returns a grid of codes `(h w)` as uint8 `(H W 3)`, with each code decoded alone."""
    codes, places = indices.unique(return_inverse=True)
    return tiled(single_codes(vqgan, codes)[places.flatten().cpu().numpy()], indices.shape[1])


def mark_code(pixels: np.ndarray, indices: Tensor, position: int) -> np.ndarray:
    """Frames the cell at a position and all other cells of its code, and darkens the rest."""
    picture = enlarge(pixels).copy()
    codes = indices.cpu().numpy()  # (h w)
    selected = np.arange(codes.size).reshape(codes.shape) == position
    same = codes == codes[selected]
    f = picture.shape[0] // codes.shape[0]
    rest = ~same.repeat(f, 0).repeat(f, 1)
    picture[rest] = picture[rest] * 0.45
    for row, column in np.argwhere(same):
        cell = picture[row * f : (row + 1) * f, column * f : (column + 1) * f]
        color = SELECTED if selected[row, column] else SAME
        cell[:2] = cell[-2:] = color
        cell[:, :2] = cell[:, -2:] = color
    return picture


def surprise_picture(
    generator: ImageGenerator, pixels: np.ndarray, tokens: Tensor, condition: Tensor | None
) -> tuple[np.ndarray, np.ndarray]:
    """Colours an image by the surprise of its tokens `(1 n)`; also returns their bits `(n,)`."""
    bits = token_surprise(generator, tokens, condition)[0].cpu().numpy()
    lit = on_image(pixels, bits.reshape(generator.grid_size))
    return enlarge(lit), bits


def attention_picture(
    generator: ImageGenerator,
    pixels: np.ndarray,
    tokens: Tensor,
    condition: Tensor | None,
    position: int,
    layers: Sequence[int],
) -> Image.Image:
    """Shows what the prediction of a token attends to: a row per layer, a column per head.

    Each map is scaled to its largest weight. Its caption has the share of the attention that goes
    to tokens of the image; the rest goes to the prefix.
    """
    weights = attention_maps(generator, tokens, condition, [position])[0, :, :, 0].cpu().numpy()
    tiles, captions = [], []
    for layer in layers:
        for head, flat in enumerate(weights[layer]):
            tiles.append(on_image(pixels, flat.reshape(generator.grid_size), position))
            captions.append(f"{layer + 1}.{head + 1}: {flat.sum():.0%}")
    return pixel_grid(np.stack(tiles), weights.shape[1], captions, min_side=TILE)
