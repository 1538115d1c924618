"""Learned positions: one vector for each, trained with the model (as in GPT)."""

from torch import Tensor, nn

from taming.positions.places import places_end

__all__ = ["LearnedPositions"]


class LearnedPositions(nn.Module):
    """Adds a learned vector to the embedding at each place.

    Args:
        max_length: number of places.
        dim: width of the embeddings.
    """

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.embedding = nn.Embedding(max_length, dim)

    def forward(self, embeddings: Tensor, places: Tensor) -> Tensor:
        """`(b n dim)` to the same, for the places `(n,)` int64 in the sequence.

        Raises:
            ValueError: past the last place that was learned, on a CPU. On a GPU, where to look at
                the places would be to wait for them, and inside a compiled step it is an index
                out of range.
        """
        end = places_end(places)
        if end > self.max_length:
            raise ValueError(
                f"there are {self.max_length} learned positions, and {end} are asked for: use "
                "shorter sequences, a model with a longer context, or sinusoidal positions."
            )
        return embeddings + self.embedding(places)
