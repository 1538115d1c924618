"""The only place where index grids become token sequences, and back.

Row by row from the top, each row from left to right (raster order).
"""

from torch import Tensor

__all__ = ["to_indices", "to_tokens"]


def to_tokens(indices: Tensor) -> Tensor:
    """Turns `(b h w)` indices into `(b h·w)` tokens."""
    return indices.flatten(1)


def to_indices(tokens: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Turns `(b h·w)` tokens into `(b h w)` indices."""
    return tokens.unflatten(1, grid_size)
