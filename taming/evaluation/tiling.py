"""Reconstruction of large images in overlapping tiles."""

import math
from itertools import pairwise

import torch
from torch import Tensor

from taming.tokenizer import VQGAN

__all__ = ["reconstruct_tiled", "tile_starts", "tile_weights"]


def reconstruct_tiled(
    vqgan: VQGAN, images: Tensor, tile: int | None, overlap: int
) -> tuple[Tensor, Tensor]:
    """Reconstructs images tile by tile, so that memory does not grow with their size.

    Overlapping tiles are blended, see `tile_weights`. Normalisation and attention in the model see
    a tile and not the image, so the result differs a little from a reconstruction in one piece.

    Args:
        vqgan: the tokenizer, in evaluation mode.
        images: `(b c H W)` in [-1, 1], on any device. The sides are multiples of the downsample
            factor.
        tile: side of a tile, a multiple of the downsample factor; None for no tiles.
        overlap: pixels that neighbouring tiles share, less than `tile`.

    Returns:
        Reconstructions `(b c H W)` on the images' device, and int64 counts of the codes of all
        tiles, `(codebook_size,)`, on the model's device.
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
    total_weight = images.new_zeros(height, width)
    code_counts = torch.zeros(vqgan.codebook_size, dtype=torch.int64, device=device)
    for top, row_weight in zip(rows, tile_weights(rows, tile_height), strict=True):
        for left, column_weight in zip(columns, tile_weights(columns, tile_width), strict=True):
            weight = torch.outer(row_weight, column_weight).to(images.device)  # (tile tile)
            area = (..., slice(top, top + tile_height), slice(left, left + tile_width))
            output = vqgan(images[area].to(device))
            blended[area] += weight * output.reconstructions.to(images.device)
            total_weight[area] += weight
            code_counts += output.quantizer.code_counts
    return blended / total_weight, code_counts


def tile_starts(length: int, tile: int, overlap: int, factor: int) -> list[int]:
    """Returns the first pixel of each tile along one side, evenly spread multiples of `factor`.

    `length` and `tile` are multiples of it too. Neighbours share at least `overlap` − `factor` + 1
    pixels.
    """
    if length <= tile:
        return [0]
    count = math.ceil((length - overlap) / (tile - overlap))
    step = (length - tile) / (count - 1)
    starts = {int(index * step) // factor * factor for index in range(count - 1)}
    return [*sorted(starts - {length - tile}), length - tile]


def tile_weights(starts: list[int], tile: int) -> Tensor:
    """Returns the weight of each tile along one side at each of its pixels, `(tiles, tile)`.

    Where two tiles overlap, one weight falls linearly, the other rises, and they add up to 1. At
    the image's own edges a weight stays 1.
    """
    weights = torch.ones(len(starts), tile)
    for index, (start, following) in enumerate(pairwise(starts)):
        overlap = start + tile - following
        if overlap > 0:
            ramp = (torch.arange(overlap) + 0.5) / overlap
            weights[index + 1, :overlap] = torch.minimum(weights[index + 1, :overlap], ramp)
            weights[index, -overlap:] = torch.minimum(weights[index, -overlap:], ramp.flip(0))
    return weights
