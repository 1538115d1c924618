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
        self.max_length = max_length
        self.embedding = nn.Embedding(max_length, dim)

    def forward(self, embeddings: Tensor, offset: int = 0) -> Tensor:
        """`(b n dim)` to the same, for the positions `offset` to `offset + n - 1`.

        Raises:
            ValueError: past the last position that was learned.
        """
        end = offset + embeddings.shape[1]
        if end > self.max_length:
            raise ValueError(
                f"there are {self.max_length} learned positions, and {end} are asked for: use "
                "shorter sequences, a model with a longer context, or sinusoidal positions."
            )
        return embeddings + self.embedding.weight[offset:end]
