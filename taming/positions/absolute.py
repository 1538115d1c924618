"""Absolute positions, added to the embeddings: sinusoidal and learned.

Vaswani et al. 2017, "Attention Is All You Need", section 3.5:

    PE(pos, 2i)     = sin(pos / 10000^(2i/d))
    PE(pos, 2i + 1) = cos(pos / 10000^(2i/d))

Each pair (2i, 2i + 1) is the hand of a clock with its own speed. A step of k positions turns each
hand by the same angle wherever it starts, so a linear map expresses a relative position.
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
    """Returns PE of each position.

    Args:
        positions: `(n,)`, which may be fractions or negative; or a number n for 0 to n - 1.
        dim: width of the encoding.

    Returns:
        `(n dim)` float32, computed in float64. If `dim` is odd, the last pair has no cosine.
    """
    if isinstance(positions, int):
        positions = torch.arange(positions)
    two_i = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device)  # (pairs)
    angle = positions.double()[:, None] / 10000 ** (two_i / dim)  # (n pairs)
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # (n pairs 2)
    return pairs.flatten(1)[:, :dim].float()  # (n dim)


class SinusoidalPositions(nn.Module):
    """Adds the sinusoidal encoding to embeddings, without parameters.

    Args:
        dim: width of the embeddings.
        length: number of positions in the table. On a CPU the table grows when a later position
            comes. On a GPU and in a compiled step, all positions must be less than `length`,
            because reading them would wait for the GPU.
        scale: factor of the encoding, for embeddings much smaller than 1.
    """

    table: Tensor

    def __init__(self, dim: int, length: int = 1024, *, scale: float = 1.0) -> None:
        super().__init__()
        self.dim = dim
        self.scale = scale
        self.register_buffer("table", scale * sinusoidal_encoding(length, dim), persistent=False)

    def forward(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Adds to `(b n dim)` at positions `(n,)` or `(b n)` int64; see `length`."""
        if positions.device.type == "cpu" and not torch.compiler.is_compiling():
            end = int(positions.max()) + 1
            if end > len(self.table):
                self.table = (self.scale * sinusoidal_encoding(end, self.dim)).to(self.table)
        return embeddings + self.table[positions].to(embeddings.dtype)  # (b n dim)


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
        """Adds to `(b n dim)` at positions `(n,)` or `(b n)` int64 less than `max_length`."""
        return embeddings + self.embedding(positions)  # (b n dim)


def grid_coordinates(
    grid_size: tuple[int, int], reference: tuple[int, int] | None = None
) -> Tensor:
    """Returns the (row, column) of each cell of a grid.

    Args:
        grid_size: (height, width) h, w.
        reference: (height, width) H, W of another grid over the same image. The coordinates are
            then the cells' centres in units of that grid's cells: row -> (row + 1/2) H / h - 1/2.
            A condition's cell gets the coordinates of the image's cell under it.

    Returns:
        `(h w 2)` float32.
    """
    axes = [torch.arange(size, dtype=torch.float64) for size in grid_size]  # rows, columns
    if reference is not None:
        axes = [
            (cells + 0.5) * reference_size / size - 0.5
            for cells, size, reference_size in zip(axes, grid_size, reference, strict=True)
        ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).float()


class SinusoidalPositions2D(nn.Module):
    """Adds the encoding of the row to the first half of the channels, of the column to the second.

    Each half follows the formula for its own width. If `dim` is odd, the row has one channel more.

    Args:
        dim: width of the embeddings.
        coordinates: `(L 2)` (row, column) at each position in the sequence, see `grid_coordinates`.
            NaN marks a token outside the grid (a class label, a start token): it stays unchanged.
        scale: factor of the encoding, for embeddings much smaller than 1.
    """

    table: Tensor

    def __init__(self, dim: int, coordinates: Tensor, *, scale: float = 1.0) -> None:
        super().__init__()
        rows, columns = coordinates.nan_to_num().unbind(dim=1)  # (L), (L)
        halves = sinusoidal_encoding(rows, dim - dim // 2), sinusoidal_encoding(columns, dim // 2)
        outside = coordinates.isnan().any(dim=1, keepdim=True)  # (L 1)
        table = (scale * torch.cat(halves, dim=1)).masked_fill(outside, 0.0)  # (L dim)
        self.register_buffer("table", table, persistent=False)

    def forward(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Adds to `(b n dim)` at positions `(n,)` or `(b n)` int64 less than L."""
        return embeddings + self.table[positions].to(embeddings.dtype)  # (b n dim)
