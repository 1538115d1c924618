"""Sinusoidal positions (Vaswani et al. 2017, "Attention Is All You Need", section 3.5).

    PE(pos, 2i)     = sin(pos / 10000^(2i/d))
    PE(pos, 2i + 1) = cos(pos / 10000^(2i/d))

Each pair (2i, 2i + 1) is a hand of a clock with its own speed. Going k positions further turns each
hand by an angle that does not depend on where it started: relative positions are linear maps.
"""

import torch
from torch import Tensor, nn

__all__ = ["SinusoidalPositions", "sinusoidal_encoding"]


def sinusoidal_encoding(
    length: int, dim: int, *, device: torch.device | str | None = None
) -> Tensor:
    """The encoding of positions 0 to length - 1.

    Returns:
        `(length dim)` float32, computed in float64. Where `dim` is odd the last pair has no cosine.
    """
    position = torch.arange(length, dtype=torch.float64, device=device)  # (length)
    two_i = torch.arange(0, dim, 2, dtype=torch.float64, device=device)  # (pairs)
    angle = position[:, None] / 10000 ** (two_i / dim)  # (length pairs)
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # (length pairs 2)
    return pairs.flatten(1)[:, :dim].float()


class SinusoidalPositions(nn.Module):
    """Adds the sinusoidal encoding to embeddings, at any length; it has no parameters.

    Args:
        dim: width of the embeddings.
        length: positions computed in advance; more are computed when they are needed.
        scale: factor of the encoding, to suit embeddings that are much smaller than 1.
    """

    table: Tensor

    def __init__(self, dim: int, length: int = 1024, *, scale: float = 1.0) -> None:
        super().__init__()
        self.dim = dim
        self.scale = scale
        self.register_buffer("table", scale * sinusoidal_encoding(length, dim), persistent=False)

    def forward(self, embeddings: Tensor, offset: int = 0) -> Tensor:
        """`(b n dim)` to the same, for the positions `offset` to `offset + n - 1`."""
        end = offset + embeddings.shape[1]
        if end > len(self.table):
            self.table = (self.scale * sinusoidal_encoding(end, self.dim)).to(self.table)
        return embeddings + self.table[offset:end].to(embeddings.dtype)
