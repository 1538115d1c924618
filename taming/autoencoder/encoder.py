"""Images to latents."""

import torch.nn.functional as F
from torch import Tensor, nn

from taming.autoencoder.blocks import (
    AutoencoderShape,
    Downsample,
    MiddleBlock,
    group_norm,
    run_level,
)

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """CNN encoder `(b c H W) -> (b latent_channels h w)`, h = H / 2^(levels - 1).

    Attributes:
        checkpointing: store only each level's input for the backward pass and recompute the level
            there: less memory, more time, the same gradients.
    """

    def __init__(self, shape: AutoencoderShape) -> None:
        super().__init__()
        channels = shape.base_channels
        self.conv_in = nn.Conv2d(shape.image_channels, channels, 3, padding=1)
        self.levels = nn.ModuleList()
        for level, multiplier in enumerate(shape.channel_multipliers):
            downsample = [Downsample(channels)] if level > 0 else []
            blocks = shape.residual_blocks(level, channels, shape.num_residual_blocks)
            self.levels.append(nn.Sequential(*downsample, *blocks))
            channels = shape.base_channels * multiplier
        self.middle = MiddleBlock(channels, shape.dropout)
        self.norm_out = group_norm(channels)
        self.conv_out = nn.Conv2d(channels, shape.latent_channels, 3, padding=1)
        self.checkpointing = False

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` to `(b latent_channels h w)`."""
        x = self.conv_in(images)  # (b base_channels H W)
        for level in self.levels:
            x = run_level(level, x, self.checkpointing)
        x = self.middle(x)  # (b channels h w)
        return self.conv_out(F.silu(self.norm_out(x)))
