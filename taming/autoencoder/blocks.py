"""Layers of encoder and decoder (Esser et al. 2021, appendix, table 7)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from taming.attention import MultiHeadAttention
from taming.autoencoder.normalisation import GroupNorm

__all__ = [
    "AttentionBlock",
    "Downsample",
    "MiddleBlock",
    "ResidualBlock",
    "Upsample",
    "group_norm",
    "run_level",
]


def group_norm(channels: int) -> GroupNorm:
    """Makes a group normalisation with 32 groups, or the most that divide the channels."""
    num_groups = next(
        groups for groups in range(min(32, channels), 0, -1) if channels % groups == 0
    )
    return GroupNorm(num_groups, channels, eps=1e-6)


class ResidualBlock(nn.Module):
    """Two normalised 3×3 convolutions beside a skip connection: `(b in h w) -> (b out h w)`.

    Where the widths differ the skip is a 1×1 convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = group_norm(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = group_norm(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.skip: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.skip = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(b in h w) -> (b out h w)`."""
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = self.conv2(self.dropout(F.silu(self.norm2(hidden))))
        return self.skip(x) + hidden


class AttentionBlock(nn.Module):
    """Single-head self-attention over the positions of a feature map, beside a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.attention = MultiHeadAttention(channels, num_heads=1, bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(b c h w) -> (b c h w)`."""
        rows = self.norm(x).flatten(2).transpose(1, 2)  # (b h·w c)
        rows = self.attention(rows)
        return x + rows.transpose(1, 2).reshape(x.shape)


class MiddleBlock(nn.Sequential):
    """Residual block, attention, residual block: the bottom of encoder and decoder."""

    def __init__(self, channels: int, dropout: float = 0.0) -> None:
        super().__init__(
            ResidualBlock(channels, channels, dropout),
            AttentionBlock(channels),
            ResidualBlock(channels, channels, dropout),
        )


class Downsample(nn.Module):
    """Halves height and width by a strided convolution, padded on the right and the bottom only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(b c h w) -> (b c h/2 w/2)`."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Doubles height and width by repeating pixels, then convolves (no checkerboard artefacts)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(b c h w) -> (b c 2h 2w)`."""
        with torch.autocast(x.device.type, enabled=False):  # CUDA's would copy to float32
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.conv(x)


def run_level(level: nn.Module, x: torch.Tensor, checkpointing: bool) -> torch.Tensor:
    """Calls a level; with `checkpointing` its activations are computed again in the backward pass.

    Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(level, x, use_reentrant=False)
    return level(x)
