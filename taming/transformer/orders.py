"""Token order: the only place where index grids become token sequences and back.

The order is raster order: row by row from the top, each row from left to right.
"""

from torch import Tensor

__all__ = ["to_indices", "to_tokens"]


def to_tokens(indices: Tensor) -> Tensor:
    """Returns `(b h·w …)` tokens for `(b h w …)` indices or other values of grid cells."""
    return indices.flatten(1, 2)


def to_indices(tokens: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Returns `(b h w …)` indices for `(b h·w …)` tokens."""
    return tokens.unflatten(1, grid_size)
