"""The only place where index grids become token sequences, and back.

Row by row from the top, each row from left to right (raster order).
"""

from torch import Tensor

__all__ = ["to_indices", "to_tokens"]


def to_tokens(indices: Tensor) -> Tensor:
    """`(b h w)` indices to `(b h·w)` tokens."""
    return indices.flatten(1)


def to_indices(tokens: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """`(b h·w)` tokens to `(b h w)` indices."""
    return tokens.unflatten(1, grid_size)
