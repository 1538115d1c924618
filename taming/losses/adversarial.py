"""Losses on discriminator scores, high is real; scalars.

| name           | discriminator | generator      | as in                                         |
|----------------|---------------|----------------|-----------------------------------------------|
| hinge          | hinge         | −E[D(x̂)]       | Lim & Ye 2017, "Geometric GAN", eq. 14 and 15 |
| vanilla        | vanilla       | −E[D(x̂)]       | the code of Esser et al. 2021 (VQGAN)         |
| non_saturating | vanilla       | non-saturating | Goodfellow et al. 2014, eq. 1 and §3          |
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

__all__ = [
    "ADVERSARIAL_LOSSES",
    "AdversarialLoss",
    "hinge_discriminator_loss",
    "hinge_generator_loss",
    "non_saturating_generator_loss",
    "vanilla_discriminator_loss",
]


def hinge_discriminator_loss(scores_real: torch.Tensor, scores_fake: torch.Tensor) -> torch.Tensor:
    """½ (E[max(0, 1 − D(x))] + E[max(0, 1 + D(x̂))]) (Lim & Ye 2017, eq. 14)."""
    return 0.5 * (F.relu(1 - scores_real).mean() + F.relu(1 + scores_fake).mean())


def hinge_generator_loss(scores_fake: torch.Tensor) -> torch.Tensor:
    """−E[D(x̂)] (Lim & Ye 2017, eq. 15)."""
    return -scores_fake.mean()


def vanilla_discriminator_loss(
    scores_real: torch.Tensor, scores_fake: torch.Tensor
) -> torch.Tensor:
    """−½ (E[log σ(D(x))] + E[log(1 − σ(D(x̂)))]) (Goodfellow et al. 2014, eq. 1), σ the sigmoid."""
    return 0.5 * (F.softplus(-scores_real).mean() + F.softplus(scores_fake).mean())


def non_saturating_generator_loss(scores_fake: torch.Tensor) -> torch.Tensor:
    """−E[log σ(D(x̂))] (Goodfellow et al. 2014, "Generative Adversarial Nets", end of §3)."""
    return F.softplus(-scores_fake).mean()


class AdversarialLoss(NamedTuple):
    """The two sides of the game: `(scores_real, scores_fake)` and `scores_fake` to scalars."""

    discriminator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    generator: Callable[[torch.Tensor], torch.Tensor]


ADVERSARIAL_LOSSES = {
    "hinge": AdversarialLoss(hinge_discriminator_loss, hinge_generator_loss),
    "vanilla": AdversarialLoss(vanilla_discriminator_loss, hinge_generator_loss),
    "non_saturating": AdversarialLoss(vanilla_discriminator_loss, non_saturating_generator_loss),
}
