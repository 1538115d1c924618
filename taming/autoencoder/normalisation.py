"""Group normalisation that stays in the working precision."""

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["GroupNorm"]


class GroupNorm(nn.GroupNorm):
    """Group normalisation in the dtype of its input, also under autocast.

    Wu & He 2018, "Group Normalization". CUDA's autocast would compute it in float32, and all that
    follows until the next convolution: twice the memory, and a copy there and back. Means and
    variances are summed in float32 in any case.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(b c h w) -> (b c h w)`, in its dtype and, on processors, its memory format."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return F.group_norm(x, self.num_groups, weight, bias, self.eps)
