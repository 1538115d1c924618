"""Anti-aliased subsampling (Zhang 2019, "Making Convolutional Networks Shift-Invariant Again")."""

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["BlurPool"]


class BlurPool(nn.Module):
    """Blurs with [1, 2, 1] / 4 in both directions, then keeps every second pixel (§3.3, "Tri-3").

    The filter is zero at the highest frequency, which subsampling would fold onto the lowest. Its
    odd length keeps it centred: after a 4×4 convolution of stride 1 it gives the size and the
    pixel positions of the same convolution with stride 2.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(b c h w) -> (b c ⌈h/2⌉ ⌈w/2⌉)`; h and w at least 2, reflected at the border."""
        padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
        return F.avg_pool2d(F.avg_pool2d(padded, 2, stride=1), 2, stride=2)  # [1, 1] * [1, 1]
