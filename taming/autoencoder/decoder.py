"""Quantized latents to images."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from taming.autoencoder.blocks import (
    AttentionBlock,
    MiddleBlock,
    ResidualBlock,
    Upsample,
    group_norm,
    run_level,
)

__all__ = ["Decoder"]


class Decoder(nn.Module):
    """CNN decoder `(b latent_channels h w) -> (b c H W)`, the encoder's mirror image.

    Its levels run from the smallest resolution to the largest and have one residual block more than
    the encoder's. Arguments and attributes are those of `Encoder`.
    """

    def __init__(
        self,
        *,
        image_channels: int,
        resolution: int,
        base_channels: int,
        channel_multipliers: Sequence[int],
        num_residual_blocks: int,
        attention_resolutions: Sequence[int],
        latent_channels: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels = base_channels * channel_multipliers[-1]
        self.conv_in = nn.Conv2d(latent_channels, channels, 3, padding=1)
        self.middle = MiddleBlock(channels, dropout)
        self.levels = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(channel_multipliers))):
            layers: list[nn.Module] = []
            for _ in range(num_residual_blocks + 1):
                layers.append(ResidualBlock(channels, base_channels * multiplier, dropout))
                channels = base_channels * multiplier
                if resolution >> level in attention_resolutions:
                    layers.append(AttentionBlock(channels))
            if level > 0:
                layers.append(Upsample(channels))
            self.levels.append(nn.Sequential(*layers))
        self.norm_out = group_norm(channels)
        self.conv_out = nn.Conv2d(channels, image_channels, 3, padding=1)
        self.checkpointing = False

    def forward(self, quantized: torch.Tensor) -> torch.Tensor:
        """`(b latent_channels h w) -> (b c H W)`, unbounded."""
        return self.conv_out(self.features(quantized))

    def features(self, quantized: torch.Tensor) -> torch.Tensor:
        """Computes all but the last convolution: `(b latent_channels h w) -> (b width H W)`."""
        x = self.conv_in(quantized)
        x = self.middle(x)
        for level in self.levels:
            x = run_level(level, x, self.checkpointing)
        return F.silu(self.norm_out(x))
