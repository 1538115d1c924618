"""Losses on discriminator scores, which are high for real images.

| name           | discriminator | generator      | source                                        |
|----------------|---------------|----------------|-----------------------------------------------|
| hinge          | hinge         | −E[D(x̂)]       | Lim & Ye 2017, "Geometric GAN", eq. 14 and 15 |
| vanilla        | vanilla       | −E[D(x̂)]       | the code of Esser et al. 2021 (VQGAN)         |
| non_saturating | vanilla       | non-saturating | Goodfellow et al. 2014, eq. 1 and section 3   |
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taming.runtime.process_group import mean_over_ranks

__all__ = [
    "ADVERSARIAL_LOSSES",
    "AdversarialLoss",
    "LeCAM",
    "adaptive_weight",
    "hinge_discriminator_loss",
    "hinge_generator_loss",
    "non_saturating_generator_loss",
    "vanilla_discriminator_loss",
]


def hinge_discriminator_loss(scores_real: Tensor, scores_fake: Tensor) -> Tensor:
    """½ (E[max(0, 1 − D(x))] + E[max(0, 1 + D(x̂))]) (Lim & Ye 2017, eq. 14)."""
    return 0.5 * (F.relu(1 - scores_real).mean() + F.relu(1 + scores_fake).mean())


def hinge_generator_loss(scores_fake: Tensor) -> Tensor:
    """−E[D(x̂)] (Lim & Ye 2017, eq. 15)."""
    return -scores_fake.mean()


def vanilla_discriminator_loss(scores_real: Tensor, scores_fake: Tensor) -> Tensor:
    """−½ (E[log σ(D(x))] + E[log(1 − σ(D(x̂)))]) (Goodfellow et al. 2014, eq. 1), σ the sigmoid."""
    return 0.5 * (F.softplus(-scores_real).mean() + F.softplus(scores_fake).mean())


def non_saturating_generator_loss(scores_fake: Tensor) -> Tensor:
    """−E[log σ(D(x̂))] (Goodfellow et al. 2014, "Generative Adversarial Nets", end of section 3)."""
    return F.softplus(-scores_fake).mean()


class AdversarialLoss(NamedTuple):
    """The losses of discriminator `(scores_real, scores_fake)` and generator `(scores_fake)`."""

    discriminator: Callable[[Tensor, Tensor], Tensor]
    generator: Callable[[Tensor], Tensor]


ADVERSARIAL_LOSSES = {
    "hinge": AdversarialLoss(hinge_discriminator_loss, hinge_generator_loss),
    "vanilla": AdversarialLoss(vanilla_discriminator_loss, hinge_generator_loss),
    "non_saturating": AdversarialLoss(vanilla_discriminator_loss, non_saturating_generator_loss),
}


def adaptive_weight(
    reconstruction_gradient: Tensor,
    adversarial_gradient: Tensor,
    *,
    epsilon: float = 1e-4,
    maximum: float = 1e4,
) -> Tensor:
    """λ = ‖∇L_rec‖ / (‖∇L_GAN‖ + ε), clamped to [0, maximum] (Esser et al. 2021, eq. 7).

    Args:
        reconstruction_gradient: gradient of the reconstruction loss, with the perceptual loss, with
            respect to the decoder's last layer.
        adversarial_gradient: gradient of the generator's adversarial loss, likewise.
        epsilon: keeps the quotient finite; 1e-4 as in the paper's code.
        maximum: upper bound.

    Returns:
        a scalar without gradient.
    """
    weight = reconstruction_gradient.norm() / (adversarial_gradient.norm() + epsilon)
    return weight.clamp(0.0, maximum).detach()


class LeCAM(nn.Module):
    """Regularises the discriminator for small datasets.

    Tseng et al. 2021, "Regularizing Generative Adversarial Networks under Limited Data" (LeCAM),
    equation 3:

        R = E[(D(x) − α_F)²] + E[(D(x̂) − α_R)²]

    α_R and α_F are moving averages of the mean scores of real and generated images. R thus keeps
    the discriminator from moving the two sides apart without end. The averages include the current
    batch, cover all ranks and have no gradient. Like Adam's they are corrected for their start:
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
        self.mean_real: Tensor
        self.mean_fake: Tensor
        self.num_batches: Tensor
        self.register_buffer("mean_real", torch.zeros(()))
        self.register_buffer("mean_fake", torch.zeros(()))
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, scores_real: Tensor, scores_fake: Tensor) -> Tensor:
        """Returns R, a scalar; training updates the averages first."""
        if self.training:
            self._update(scores_real, scores_fake)
        to_fake = (scores_real - self.mean_fake).square().mean()
        to_real = (scores_fake - self.mean_real).square().mean()
        return to_fake + to_real

    @torch.no_grad()
    def _update(self, scores_real: Tensor, scores_fake: Tensor) -> None:
        means = torch.stack([scores_real.mean(), scores_fake.mean()]).to(self.mean_real)
        means = mean_over_ranks(means)
        self.num_batches += 1
        share = (1 - self.decay) / (1 - self.decay**self.num_batches)  # of the new batch
        self.mean_real.lerp_(means[0], share.to(means))
        self.mean_fake.lerp_(means[1], share.to(means))
