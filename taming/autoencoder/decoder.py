"""Quantized latents to images."""

import torch.nn.functional as F
from torch import Tensor, nn

from taming.autoencoder.blocks import (
    AutoencoderShape,
    MiddleBlock,
    Upsample,
    group_norm,
    run_level,
)

__all__ = ["Decoder"]


class Decoder(nn.Module):
    """CNN decoder `(b latent_channels h w) -> (b c H W)`, the mirror image of `Encoder`.

    Its levels run from the smallest resolution to the largest. Each has one residual block more
    than the encoder's.

    Attributes:
        checkpointing: see `Encoder`.
    """

    def __init__(self, shape: AutoencoderShape) -> None:
        super().__init__()
        channels = shape.base_channels * shape.channel_multipliers[-1]
        self.conv_in = nn.Conv2d(shape.latent_channels, channels, 3, padding=1)
        self.middle = MiddleBlock(channels, shape.dropout)
        self.levels = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(shape.channel_multipliers))):
            blocks = shape.residual_blocks(level, channels, shape.num_residual_blocks + 1)
            channels = shape.base_channels * multiplier
            upsample = [Upsample(channels)] if level > 0 else []
            self.levels.append(nn.Sequential(*blocks, *upsample))
        self.norm_out = group_norm(channels)
        self.conv_out = nn.Conv2d(channels, shape.image_channels, 3, padding=1)
        self.checkpointing = False

    def forward(self, quantized: Tensor) -> Tensor:
        """Maps `(b latent_channels h w)` to `(b c H W)`, unbounded."""
        return self.conv_out(self.features(quantized))

    def features(self, quantized: Tensor) -> Tensor:
        """Computes all but the last convolution: `(b latent_channels h w)` to `(b width H W)`."""
        x = self.middle(self.conv_in(quantized))  # (b channels h w)
        for level in self.levels:
            x = run_level(level, x, self.checkpointing)
        return F.silu(self.norm_out(x))
