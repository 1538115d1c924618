"""Pixel differences between images and reconstructions, both `(b c H W)`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

__all__ = ["RECONSTRUCTION_LOSSES", "cross_entropy_loss"]


def cross_entropy_loss(reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """−log softmax(reconstructions) at each pixel's class, its mean in nats, a scalar.

    The reconstructions are logits, the decoder's raw output; the images are one-hot label maps,
    0 or 1.
    """
    return F.cross_entropy(reconstructions, images.argmax(1))


RECONSTRUCTION_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "l1": F.l1_loss,
    "l2": F.mse_loss,
    "cross_entropy": cross_entropy_loss,
}
