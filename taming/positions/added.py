"""Positions that are added to the embeddings: sinusoidal ones and learned ones.

Vaswani et al. 2017, "Attention Is All You Need", section 3.5:

    PE(pos, 2i)     = sin(pos / 10000^(2i/d))
    PE(pos, 2i + 1) = cos(pos / 10000^(2i/d))

Each pair (2i, 2i + 1) is a hand of a clock with its own speed. Going k positions further turns each
hand by an angle that does not depend on where it started: relative positions are linear maps.
"""

import torch
from torch import Tensor, nn

__all__ = [
    "LearnedPositions",
    "SinusoidalPositions",
    "SinusoidalPositions2D",
    "grid_coordinates",
    "sinusoidal_encoding",
]


def sinusoidal_encoding(positions: Tensor | int, dim: int) -> Tensor:
    """Returns the encoding of some positions.

    Args:
        positions: `(n,)`, fractions and negative numbers too; or a number n: 0 to n - 1.
        dim: width of the encoding.

    Returns:
        `(n dim)` float32, computed in float64. Where `dim` is odd the last pair has no cosine.
    """
    if isinstance(positions, int):
        positions = torch.arange(positions)
    two_i = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device)  # (pairs)
    angle = positions.double()[:, None] / 10000 ** (two_i / dim)  # (n pairs)
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # (n pairs 2)
    return pairs.flatten(1)[:, :dim].float()


class SinusoidalPositions(nn.Module):
    """Adds the sinusoidal encoding to embeddings, without parameters.

    Args:
        dim: width of the embeddings.
        length: positions computed in advance. On a CPU more are computed when they are needed, so
            that any length will do. On a GPU, where looking at positions would mean waiting for
            it, and inside a compiled step, all positions must be less than it.
        scale: factor of the encoding, to suit embeddings that are much smaller than 1.
    """

    table: Tensor

    def __init__(self, dim: int, length: int = 1024, *, scale: float = 1.0) -> None:
        super().__init__()
        self.dim = dim
        self.scale = scale
        self.register_buffer("table", scale * sinusoidal_encoding(length, dim), persistent=False)

    def forward(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Adds to `(b n dim)`, for positions `(n,)` int64; see `length`."""
        if positions.device.type == "cpu" and not torch.compiler.is_compiling():
            end = int(positions.max()) + 1
            if end > len(self.table):
                self.table = (self.scale * sinusoidal_encoding(end, self.dim)).to(self.table)
        return embeddings + self.table[positions].to(embeddings.dtype)


def grid_coordinates(
    grid_size: tuple[int, int], reference: tuple[int, int] | None = None
) -> Tensor:
    """Returns (row, column) of each cell of a grid in raster order (`taming.transformer.orders`).

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


class SinusoidalPositions2D(nn.Module):
    """Adds the encoding of the row to one half of the channels, that of the column to the other.

    Each half is encoded by the formula for its own width; where `dim` is odd the row has one
    channel more.

    Args:
        dim: width of the embeddings.
        coordinates: `(L 2)` (row, column) of each position in the sequence, see `grid_coordinates`;
            NaN for one that lies nowhere (a class label, a start token): nothing is added to it.
        scale: factor of the encoding, to suit embeddings that are much smaller than 1.
    """

    table: Tensor

    def __init__(self, dim: int, coordinates: Tensor, *, scale: float = 1.0) -> None:
        super().__init__()
        rows, columns = coordinates.nan_to_num().unbind(dim=1)
        encoding = torch.cat(
            [sinusoidal_encoding(rows, dim - dim // 2), sinusoidal_encoding(columns, dim // 2)],
            dim=1,
        )  # (L dim)
        nowhere = coordinates.isnan().any(dim=1, keepdim=True)  # (L 1)
        table = (scale * encoding).masked_fill(nowhere, 0.0)
        self.register_buffer("table", table, persistent=False)

    def forward(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Adds to `(b n dim)`, for positions `(n,)` int64 less than L."""
        return embeddings + self.table[positions].to(embeddings.dtype)


class LearnedPositions(nn.Module):
    """Adds a learned vector to the embedding at each position, as in GPT.

    Args:
        max_length: number of positions.
        dim: width of the embeddings.
    """

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(max_length, dim)

    def forward(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Adds to `(b n dim)`, for positions `(n,)` int64 less than `max_length`."""
        return embeddings + self.embedding(positions)
