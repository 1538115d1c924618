"""Token order: the only place where index grids become token sequences and back.

The raster order goes row by row from the top, each row from left to right. A cell's number is its
position in raster order. An order lists the numbers of the cells in the sequence in which a model
reads and generates them.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

__all__ = ["FixedOrder", "known_first", "order_cells", "to_indices", "to_tokens"]

FixedOrder = Literal["raster", "spiral_out", "spiral_in", "z_curve", "subsample", "alternate_scan",
    "fixed_random", "halton"]  # fmt: skip


def to_tokens(indices: Tensor, cells: Tensor | None = None) -> Tensor:
    """Returns `(b n …)` tokens for `(b h w …)` indices or other values of grid cells.

    Args:
        indices: the grid.
        cells: an order `(n,)`, or one for each image `(b n)`; None: raster.
    """
    tokens = indices.flatten(1, 2)  # (b h·w …)
    if cells is None:
        return tokens
    return tokens[:, cells] if cells.ndim == 1 else tokens.gather(1, cells)


def to_indices(tokens: Tensor, grid_size: tuple[int, int], cells: Tensor | None = None) -> Tensor:
    """Returns `(b h w …)` indices for `(b h·w …)` tokens; the inverse of `to_tokens`."""
    if cells is not None:
        positions = cells.argsort(dim=-1)  # of each cell in the sequence
        tokens = tokens[:, positions] if cells.ndim == 1 else tokens.gather(1, positions)
    return tokens.unflatten(1, grid_size)


def order_cells(order: FixedOrder, grid_size: tuple[int, int]) -> Tensor:
    """Returns the numbers of the cells in an order, `(h·w,)` int64.

    | order | cells |
    |---|---|
    | raster | row by row, from left to right |
    | alternate_scan | row by row, every other row from right to left |
    | spiral_in | around the border from the bottom right corner upwards, then inwards |
    | spiral_out | the same in reverse, from the middle |
    | z_curve | quarter by quarter, each in the same way (Morton order) |
    | subsample | a coarse grid over the image, then the cells between |
    | fixed_random | one shuffle for all images |
    | halton | evenly spread over the image at any time (Besnier et al. 2025) |

    All but the last equal the permutations of taming-transformers where that defines them, and
    extend them to grids of any height and width.
    """
    height, width = grid_size
    numbers = torch.arange(height * width)
    rows, columns = numbers // width, numbers % width
    if order == "alternate_scan":
        return torch.where(rows % 2 == 1, rows * width + width - 1 - columns, numbers)
    if order in ("spiral_in", "spiral_out"):
        spiral = torch.cat(list(_peel(numbers.view(height, width))))
        return spiral if order == "spiral_in" else spiral.flip(0)
    if order in ("z_curve", "subsample"):
        levels = max(height - 1, width - 1).bit_length()
        key = torch.zeros_like(numbers)
        for level in range(levels):
            quarter = 2 * (rows >> level & 1) + (columns >> level & 1)
            key += quarter << 2 * (level if order == "z_curve" else levels - 1 - level)
        return key.argsort()
    if order == "fixed_random":
        return torch.from_numpy(np.random.RandomState(1).permutation(height * width)).long()
    if order == "halton":
        return _halton(height, width)
    return numbers


def known_first(order: Tensor, is_known: Tensor) -> Tensor:
    """Moves the known cells of each image to the front, without changing the order otherwise.

    Args:
        order: `(n,)`, or `(b n)`.
        is_known: `(b n)` by the number of the cell.

    Returns:
        `(b n)`.
    """
    order = order.expand(len(is_known), -1)  # (b n)
    later = (~is_known.gather(1, order)).to(torch.uint8)  # bool cannot be sorted everywhere
    return order.gather(1, later.argsort(dim=1, stable=True))


def _peel(numbers: Tensor) -> Iterator[Tensor]:
    """Yields the right column upwards, then turns the rest clockwise, so that the top follows."""
    while numbers.numel():
        yield numbers[:, -1].flip(0)
        numbers = numbers[:, :-1].rot90(-1)


def _halton(height: int, width: int) -> Tensor:
    """Visits cells by the points of the Halton sequence: rows in base 2, columns in base 3."""
    cells: dict[int, None] = {}  # in the order of their first visit
    index = 0
    while len(cells) < height * width:
        index += 1
        row, column = (int(_radical_inverse(index, base) * size) for base, size in
                       ((2, height), (3, width)))  # fmt: skip
        cells[row * width + column] = None
    return torch.tensor(list(cells))


def _radical_inverse(number: int, base: int) -> float:
    """Returns the digits of a number behind the point, in reverse: 6 = 110₂ becomes 0.011₂."""
    result, scale = 0.0, 1.0
    while number:
        scale /= base
        number, digit = divmod(number, base)
        result += digit * scale
    return result
