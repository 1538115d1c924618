"""Rotary positions in two dimensions (Su et al. 2021, "RoFormer"; over a grid as in LlamaGen).

Queries and keys are seen as pairs of numbers, each a point in the plane, and turned by angles
proportional to where the token stands: the first half of the pairs by its row, the second half by
its column. Turning two vectors by α and β leaves an inner product that depends on α - β alone, so
that a score depends on how many rows and columns lie between query and key.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from taming.runtime.errors import UserError

__all__ = ["RotaryPositions2D"]


class RotaryPositions2D(nn.Module):
    """Turns queries and keys by the row and column of their tokens, without parameters.

    Pair i of the P pairs of a half turns by coordinate · base^(-i/P).

    Args:
        head_dim: width of the queries and keys of one head, a multiple of 4.
        coordinates: `(L 2)` (row, column) of each position in the sequence, see `grid_coordinates`;
            NaN for one that lies nowhere (a class label, a start token): it is not turned.
        zero_nowhere: queries and keys that lie nowhere become zero, as LlamaGen has it: they
            then attend to all keys alike, and all queries give them the score 0.
        base: the slowest pair is almost this many times slower than the fastest.
    """

    table: Tensor

    def __init__(
        self,
        head_dim: int,
        coordinates: Tensor,
        *,
        zero_nowhere: bool = False,
        base: float = 10000.0,
    ) -> None:
        super().__init__()
        if head_dim % 4:
            raise UserError(
                f"2-D rotary positions need heads whose width is a multiple of 4, not {head_dim}: "
                "choose another embed_dim or num_heads."
            )
        exponent = torch.arange(head_dim // 4, dtype=torch.float64) / (head_dim // 4)
        speed = base**-exponent  # (P)
        angle = (coordinates.double().nan_to_num()[:, :, None] * speed).flatten(1)  # (L 2P)
        table = torch.stack([angle.cos(), angle.sin()], dim=-1)  # (L 2P 2)
        nowhere = coordinates.isnan().any(dim=1)  # (L)
        still = torch.tensor([0.0 if zero_nowhere else 1.0, 0.0], dtype=torch.float64)
        table = torch.where(nowhere[:, None, None], still, table).float()
        # Kept as bits: `Module.to(torch.bfloat16)` would round floating-point numbers.
        self.register_buffer("table", table.view(torch.int32), persistent=False)

    def rotation(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        """Returns the function that turns queries or keys at these positions, in all layers.

        It maps `(b heads n head_dim)` to the same, in its dtype. In half precision the error is
        that of about two roundings, where float32 inside would leave one, and cost twice the memory
        traffic.

        Args:
            positions: `(n,)` int64, less than L.
        """
        return partial(_turn, table=self.table[positions].view(torch.float32))


def _turn(x: Tensor, table: Tensor) -> Tensor:
    """Turns the pairs (2i, 2i + 1)."""
    cos, sin = table.to(x.dtype).unbind(dim=-1)  # (n pairs)
    first, second = x.unflatten(-1, (-1, 2)).unbind(dim=-1)  # (b heads n pairs)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.flatten(-2)
