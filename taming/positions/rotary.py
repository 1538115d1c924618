"""Rotary positions in two dimensions (Su et al. 2021, "RoFormer"; on a grid as in LlamaGen).

Each pair of channels of a query or key is a point in the plane. The first half of the pairs rotates
by angles proportional to the token's row, the second half by angles proportional to its column. The
inner product of two vectors rotated by α and β depends on α - β alone. A score therefore depends on
the number of rows and columns between query and key.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from taming.runtime.errors import UserError

__all__ = ["RotaryPositions2D"]


class RotaryPositions2D(nn.Module):
    """Rotates queries and keys by the row and column of their tokens, without parameters.

    Pair i of the P pairs of a half rotates by coordinate · base^(-i/P).

    Args:
        head_dim: width of the queries and keys of one head, a multiple of 4.
        coordinates: `(L 2)` (row, column) at each position in the sequence, see `grid_coordinates`.
            NaN marks a token outside the grid (a class label, a start token): it is not rotated.
        zero_outside: replace queries and keys of tokens outside the grid by zero, as LlamaGen does.
            Such a query attends to all keys alike, and such a key gets the score 0.
        base: approximate ratio of the fastest to the slowest speed.
    """

    table: Tensor

    def __init__(
        self,
        head_dim: int,
        coordinates: Tensor,
        *,
        zero_outside: bool = False,
        base: float = 10000.0,
    ) -> None:
        super().__init__()
        if head_dim % 4:
            raise UserError(
                f"2-D rotary positions need heads whose width is a multiple of 4, not {head_dim}. "
                "Choose another embed_dim or num_heads."
            )
        exponent = torch.arange(head_dim // 4, dtype=torch.float64) / (head_dim // 4)
        speed = base**-exponent  # (P)
        angle = (coordinates.double().nan_to_num()[:, :, None] * speed).flatten(1)  # (L 2P)
        table = torch.stack([angle.cos(), angle.sin()], dim=-1)  # (L 2P 2)
        outside = coordinates.isnan().any(dim=1)  # (L)
        unrotated = torch.tensor([0.0 if zero_outside else 1.0, 0.0], dtype=torch.float64)
        table = torch.where(outside[:, None, None], unrotated, table).float()
        # Stored as bits, because `Module.to(torch.bfloat16)` would round floating-point numbers.
        self.register_buffer("table", table.view(torch.int32), persistent=False)

    def rotation(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        """Returns the function that rotates queries or keys at positions less than L.

        All layers can share it. It maps `(b heads n head_dim)` to the same shape and dtype. In half
        precision its error is about two roundings. Computing in float32 would save one of them and
        double the memory traffic.

        Args:
            positions: `(n,)` int64, or `(b n)` for each sequence.
        """
        table = self.table[positions].view(torch.float32)  # (n pairs 2) or (b n pairs 2)
        return partial(_rotate, table=table if positions.ndim == 1 else table[:, None])


def _rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotates each pair (2i, 2i + 1) by its angle."""
    cos, sin = table.to(x.dtype).unbind(dim=-1)  # (n pairs)
    first, second = x.unflatten(-1, (-1, 2)).unbind(dim=-1)  # (b heads n pairs)
    rotated = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return rotated.flatten(-2)  # (b heads n head_dim)
