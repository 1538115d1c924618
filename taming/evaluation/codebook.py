"""How much of the codebook is in use."""

import torch
from torchmetrics import Metric

__all__ = ["CodebookUsage"]


class CodebookUsage(Metric):
    """Usage and perplexity over everything it was updated with, on all ranks.

    `compute` returns `codebook_usage`, the fraction of codes chosen at least once, in [0, 1], and
    `codebook_perplexity`, exp of the entropy of the chosen codes in nats, in [1, codebook_size].
    """

    names = ("codebook_usage", "codebook_perplexity")  # that `compute` gives
    higher_is_better = True
    full_state_update = False

    def __init__(self, codebook_size: int) -> None:
        super().__init__()
        self.counts: torch.Tensor
        self.add_state(
            "counts", torch.zeros(codebook_size, dtype=torch.int64), dist_reduce_fx="sum"
        )

    def update(self, code_counts: torch.Tensor) -> None:
        """Adds `(codebook_size,)` int64 counts."""
        self.counts += code_counts

    def compute(self) -> dict[str, torch.Tensor]:
        """The two numbers."""
        frequencies = self.counts.double() / self.counts.sum().clamp(min=1)
        entropy = torch.special.entr(frequencies).sum()
        return {
            "codebook_usage": (self.counts > 0).double().mean(),
            "codebook_perplexity": entropy.exp(),
        }
