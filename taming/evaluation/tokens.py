"""How much of the codebook is in use, and how well a transformer predicts unseen tokens."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

__all__ = ["CodebookUsage", "TokenLikelihood"]


class CodebookUsage(Metric):
    """Usage and perplexity of the codes, over all updates and ranks.

    `compute` returns `codebook_usage`, the fraction of codes chosen at least once, in [0, 1], and
    `codebook_perplexity`, exp of the entropy of the chosen codes in nats, in [1, codebook_size].
    """

    names = ("codebook_usage", "codebook_perplexity")  # of the numbers that `compute` returns
    higher_is_better = True
    full_state_update = False

    def __init__(self, codebook_size: int) -> None:
        super().__init__()
        self.counts: Tensor
        self.add_state(
            "counts", torch.zeros(codebook_size, dtype=torch.int64), dist_reduce_fx="sum"
        )

    def update(self, code_counts: Tensor) -> None:
        """Adds `(codebook_size,)` int64 counts."""
        self.counts += code_counts

    def compute(self) -> dict[str, Tensor]:
        """Returns the two numbers."""
        frequencies = self.counts.double() / self.counts.sum().clamp(min=1)
        entropy = torch.special.entr(frequencies).sum()
        return {
            "codebook_usage": (self.counts > 0).double().mean(),
            "codebook_perplexity": entropy.exp(),
        }


class TokenLikelihood(Metric):
    """Mean negative log-likelihood of a token, over all tokens of all updates and ranks.

    `compute` returns `nats_per_token`, −log p with the natural logarithm; `bits_per_token`, the
    same with base 2; and `perplexity`, exp of the nats: the number of equally probable tokens that
    would be as hard to predict. (torchmetrics' Perplexity adds up in float32.)
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.nats: Tensor
        self.num_tokens: Tensor
        self.add_state("nats", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("num_tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, tokens: Tensor) -> None:
        """Adds logits `(b n v)` and the tokens they predict, `(b n)`."""
        nats = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="none")
        self.nats += nats.double().sum()  # b·n·v numbers in float64 would fill a GPU
        self.num_tokens += tokens.numel()

    def compute(self) -> dict[str, Tensor]:
        """Returns the three numbers."""
        nats = self.nats / self.num_tokens
        return {
            "nats_per_token": nats,
            "bits_per_token": nats / math.log(2),
            "perplexity": nats.exp(),
        }
