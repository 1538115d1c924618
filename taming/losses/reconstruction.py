"""Pixel differences between images and reconstructions, both `(b c H W)`."""

import torch
import torch.nn.functional as F

__all__ = ["cross_entropy_loss", "l1_loss", "l2_loss"]


def l1_loss(reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference of pictures in [-1, 1], a scalar."""
    return F.l1_loss(reconstructions, images)


def l2_loss(reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Mean squared difference of pictures in [-1, 1], a scalar."""
    return F.mse_loss(reconstructions, images)


def cross_entropy_loss(reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """−log softmax(reconstructions) at each pixel's class, its mean in nats, a scalar.

    The reconstructions are logits, the decoder's raw output; the images are one-hot label maps,
    0 or 1.
    """
    return F.cross_entropy(reconstructions, images.argmax(1))
