"""Images to latents."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from taming.autoencoder.blocks import (
    AttentionBlock,
    Downsample,
    MiddleBlock,
    ResidualBlock,
    group_norm,
    run_level,
)

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """CNN encoder `(b c H W) -> (b latent_channels h w)`, h = H / 2^(levels - 1).

    Args:
        image_channels: channels of the images.
        resolution: image height the attention levels are counted from.
        base_channels: width of the first level.
        channel_multipliers: width of each level in units of `base_channels`; one level each, with a
            halving of the resolution between levels.
        num_residual_blocks: residual blocks per level.
        attention_resolutions: levels of these heights get an attention block after each residual
            one.
        latent_channels: width of the output.
        dropout: inside residual blocks.

    Attributes:
        checkpointing: keep only each level's input for the backward pass and compute the level
            again there: less memory, more time, the same gradients.
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
        self.conv_in = nn.Conv2d(image_channels, base_channels, 3, padding=1)
        self.levels = nn.ModuleList()
        channels = base_channels
        for level, multiplier in enumerate(channel_multipliers):
            layers: list[nn.Module] = []
            if level > 0:
                layers.append(Downsample(channels))
            for _ in range(num_residual_blocks):
                layers.append(ResidualBlock(channels, base_channels * multiplier, dropout))
                channels = base_channels * multiplier
                if resolution >> level in attention_resolutions:
                    layers.append(AttentionBlock(channels))
            self.levels.append(nn.Sequential(*layers))
        self.middle = MiddleBlock(channels, dropout)
        self.norm_out = group_norm(channels)
        self.conv_out = nn.Conv2d(channels, latent_channels, 3, padding=1)
        self.checkpointing = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """`(b c H W) -> (b latent_channels h w)`."""
        x = self.conv_in(images)
        for level in self.levels:
            x = run_level(level, x, self.checkpointing)
        x = self.middle(x)
        return self.conv_out(F.silu(self.norm_out(x)))
