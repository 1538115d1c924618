"""Coordinates of the cells of a code grid, which 2-D positions are made of."""

import torch
from torch import Tensor

__all__ = ["grid_coordinates"]


def grid_coordinates(
    grid_size: tuple[int, int], reference: tuple[int, int] | None = None
) -> Tensor:
    """Returns (row, column) of each cell of a grid, in raster order (that of `taming.sequence`).

    Args:
        grid_size: (height, width) h, w.
        reference: (height, width) of another grid over the same picture. The coordinates are then
            those of the cells' centres, counted in cells of that grid, so that a condition's cell
            gets the coordinates of the image's cell it lies on: row -> (row + 1/2) H / h - 1/2.

    Returns:
        `(h·w 2)` float32.
    """
    along = [torch.arange(size, dtype=torch.float64) for size in grid_size]  # rows, columns
    if reference is not None:
        along = [
            (cells + 0.5) * to / size - 0.5
            for cells, size, to in zip(along, grid_size, reference, strict=True)
        ]
    return torch.cartesian_prod(*along).float()  # the last coordinate runs fastest
