"""Pixel differences between images and reconstructions, both `(b c H W)` in [-1, 1]."""

import torch
import torch.nn.functional as F

__all__ = ["l1_loss", "l2_loss"]


def l1_loss(reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference, a scalar."""
    return F.l1_loss(reconstructions, images)


def l2_loss(reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Mean squared difference, a scalar."""
    return F.mse_loss(reconstructions, images)
