"""How well a transformer predicts tokens it has not seen."""

import math

import torch
import torch.nn.functional as F
from torchmetrics import Metric

__all__ = ["TokenLikelihood"]


class TokenLikelihood(Metric):
    """Mean negative log-likelihood of a token, over all tokens it was updated with, on all ranks.

    `compute` returns `nats_per_token`, −log p with the natural logarithm; `bits_per_token`, the
    same with that of base 2; and `perplexity`, exp of the first: as many equally probable tokens
    would be as hard to predict.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.nats: torch.Tensor
        self.num_tokens: torch.Tensor
        self.add_state("nats", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("num_tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Adds logits `(b n v)` and the tokens they predict, `(b n)`."""
        nats = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="none")
        self.nats += nats.double().sum()  # b·n·v numbers in float64 would fill a GPU
        self.num_tokens += tokens.numel()

    def compute(self) -> dict[str, torch.Tensor]:
        """The three numbers."""
        nats = self.nats / self.num_tokens
        return {
            "nats_per_token": nats,
            "bits_per_token": nats / math.log(2),
            "perplexity": nats.exp(),
        }
