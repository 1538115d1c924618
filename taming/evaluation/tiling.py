"""Large images through a tokenizer in overlapping tiles."""

import math
from itertools import pairwise

import torch
from torch import Tensor

from taming.tokenizer import VQGAN

__all__ = ["reconstruct_tiled", "tile_starts", "tile_weights"]


def reconstruct_tiled(
    vqgan: VQGAN, images: Tensor, tile: int | None, overlap: int
) -> tuple[Tensor, Tensor]:
    """Reconstructs images, each tile on its own, so that memory does not grow with their size.

    Tiles that overlap are blended (see `tile_weights`). Normalisation and attention inside the
    model see a tile and not the image, so the result is not quite that of the whole image.

    Args:
        vqgan: the tokenizer, in evaluation mode.
        images: `(b c H W)` in [-1, 1], on any device.
        tile: height and width of a tile; None: no tiles. It and the images' sides are multiples of
            the downsample factor.
        overlap: pixels that neighbouring tiles share, less than `tile`.

    Returns:
        Reconstructions `(b c H W)` on the images' device, and `(codebook_size,)` int64 counts of
        the codes of all tiles on the model's.
    """
    device = vqgan.device
    height, width = images.shape[2:]
    if tile is None or (height <= tile and width <= tile):
        output = vqgan(images.to(device))
        return output.reconstructions.to(images.device), output.quantizer.code_counts
    tile_height, tile_width = min(tile, height), min(tile, width)
    rows = tile_starts(height, tile_height, overlap, vqgan.downsample_factor)
    columns = tile_starts(width, tile_width, overlap, vqgan.downsample_factor)
    blended = torch.zeros_like(images)
    total = images.new_zeros(height, width)
    code_counts = torch.zeros(vqgan.codebook_size, dtype=torch.int64, device=device)
    for top, row_weight in zip(rows, tile_weights(rows, tile_height), strict=True):
        for left, column_weight in zip(columns, tile_weights(columns, tile_width), strict=True):
            weight = torch.outer(row_weight, column_weight).to(images.device)  # (tile tile)
            place = (..., slice(top, top + tile_height), slice(left, left + tile_width))
            output = vqgan(images[place].to(device))
            blended[place] += weight * output.reconstructions.to(images.device)
            total[place] += weight
            code_counts += output.quantizer.code_counts
    return blended / total, code_counts


def tile_starts(length: int, tile: int, overlap: int, factor: int) -> list[int]:
    """Returns where tiles along one side begin: evenly spread, each a multiple of `factor`.

    `length` and `tile` are multiples of it too. Neighbours share `overlap` pixels, up to
    `factor` − 1 fewer or any number more.
    """
    if length <= tile:
        return [0]
    count = math.ceil((length - overlap) / (tile - overlap))
    step = (length - tile) / (count - 1)
    starts = {int(index * step) // factor * factor for index in range(count - 1)}
    return [*sorted(starts - {length - tile}), length - tile]


def tile_weights(starts: list[int], tile: int) -> Tensor:
    """Returns the weight of each tile along one side at each of its pixels, `(tiles, tile)`.

    The weight falls linearly over what a tile shares with its neighbour, in which the neighbour's
    rises: where two tiles overlap they add to 1. At the image's own edges it does not fall.
    """
    weights = torch.ones(len(starts), tile)
    for index, (start, following) in enumerate(pairwise(starts)):
        overlap = start + tile - following
        if overlap > 0:
            ramp = (torch.arange(overlap) + 0.5) / overlap
            weights[index + 1, :overlap] = torch.minimum(weights[index + 1, :overlap], ramp)
            weights[index, -overlap:] = torch.minimum(weights[index, -overlap:], ramp.flip(0))
    return weights
