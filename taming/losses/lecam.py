"""A regularisation of the discriminator for small data sets.

Tseng et al. 2021, "Regularizing Generative Adversarial Networks under Limited Data" (LeCAM).
"""

import torch
from torch import nn

from taming.ranks import mean_over_ranks

__all__ = ["LeCAM"]


class LeCAM(nn.Module):
    """Holds the scores of each side near the running mean of the other's.

    R = E[(D(x) − α_F)²] + E[(D(x̂) − α_R)²] (eq. 3), where α_R and α_F are exponential moving
    averages of the mean scores of real and generated images: a discriminator cannot move the two
    sides apart without end. The averages are of every batch seen in training, the present one
    included and without gradient, over all ranks; as Adam's they are corrected for their start:
    after k batches with means m_i, α = Σ d^(k−i) m_i / Σ d^(k−i).

    Args:
        decay: d.

    Attributes:
        mean_real, mean_fake: α_R and α_F.
        num_batches: k.
    """

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.mean_real: torch.Tensor
        self.mean_fake: torch.Tensor
        self.num_batches: torch.Tensor
        self.register_buffer("mean_real", torch.zeros(()))
        self.register_buffer("mean_fake", torch.zeros(()))
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, scores_real: torch.Tensor, scores_fake: torch.Tensor) -> torch.Tensor:
        """Returns the unweighted regularisation, a scalar; in training first updates the means."""
        if self.training:
            self._update(scores_real, scores_fake)
        to_fake = (scores_real - self.mean_fake).square().mean()
        to_real = (scores_fake - self.mean_real).square().mean()
        return to_fake + to_real

    @torch.no_grad()
    def _update(self, scores_real: torch.Tensor, scores_fake: torch.Tensor) -> None:
        means = mean_over_ranks(torch.stack([scores_real.mean(), scores_fake.mean()]).float())
        self.num_batches += 1
        share = (1 - self.decay) / (1 - self.decay**self.num_batches)  # of the new batch
        self.mean_real.lerp_(means[0], share)
        self.mean_fake.lerp_(means[1], share)
