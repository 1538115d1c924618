"""Losses on discriminator scores, high is real (Lim & Ye 2017, "Geometric GAN", eq. 14)."""

import torch
import torch.nn.functional as F

__all__ = ["hinge_discriminator_loss", "hinge_generator_loss"]


def hinge_discriminator_loss(scores_real: torch.Tensor, scores_fake: torch.Tensor) -> torch.Tensor:
    """½ (E[max(0, 1 − D(x))] + E[max(0, 1 + D(x̂))]), a scalar."""
    return 0.5 * (F.relu(1 - scores_real).mean() + F.relu(1 + scores_fake).mean())


def hinge_generator_loss(scores_fake: torch.Tensor) -> torch.Tensor:
    """−E[D(x̂)], a scalar."""
    return -scores_fake.mean()
