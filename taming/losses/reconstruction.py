"""Pixel differences between images and reconstructions, both `(b c H W)`."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

__all__ = ["RECONSTRUCTION_LOSSES", "cross_entropy_loss"]


def cross_entropy_loss(reconstructions: Tensor, images: Tensor) -> Tensor:
    """Returns the mean −log softmax(reconstructions) of each pixel's class, in nats.

    The reconstructions are logits, the decoder's raw output. The images are one-hot label maps.
    """
    return F.cross_entropy(reconstructions, images.argmax(1))


RECONSTRUCTION_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": F.l1_loss,
    "l2": F.mse_loss,
    "cross_entropy": cross_entropy_loss,
}
