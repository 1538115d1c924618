"""Learned positions: one vector for each, trained with the model (as in GPT)."""

from torch import Tensor, nn

__all__ = ["LearnedPositions"]


class LearnedPositions(nn.Module):
    """Adds a learned vector to the embedding at each position.

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
