"""Layers that encoder and decoder share (Esser et al. 2021, appendix, table 7)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from taming.attention import MultiHeadAttention

__all__ = [
    "AttentionBlock",
    "AutoencoderShape",
    "Downsample",
    "GroupNorm",
    "MiddleBlock",
    "ResidualBlock",
    "Upsample",
    "group_norm",
    "run_level",
]


@dataclass(frozen=True, kw_only=True)
class AutoencoderShape:
    """The shape of an encoder or decoder; for the fields see `taming.tokenizer.VQGAN`."""

    resolution: int  # image height
    image_channels: int
    base_channels: int
    channel_multipliers: Sequence[int]
    num_residual_blocks: int
    attention_resolutions: Sequence[int]
    latent_channels: int
    dropout: float = 0.0

    def residual_blocks(self, level: int, in_channels: int, count: int) -> list[nn.Module]:
        """Builds a level's residual blocks, each followed by attention if the level has it."""
        channels = self.base_channels * self.channel_multipliers[level]
        layers: list[nn.Module] = []
        for index in range(count):
            first = in_channels if index == 0 else channels
            layers.append(ResidualBlock(first, channels, self.dropout))
            if self.resolution >> level in self.attention_resolutions:
                layers.append(AttentionBlock(channels))
        return layers


class GroupNorm(nn.GroupNorm):
    """Group normalisation in the dtype of its input, also under autocast (Wu & He 2018).

    CUDA's autocast would compute it and all operations up to the next convolution in float32, with
    twice the memory and two copies. Means and variances are summed in float32 in any case.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `(b c h w)`; on CPUs the memory format stays the same too."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return F.group_norm(x, self.num_groups, weight, bias, self.eps)


def group_norm(channels: int, max_groups: int = 32, eps: float = 1e-6) -> GroupNorm:
    """Builds a group normalisation with the most groups, up to a maximum, that divide channels."""
    num_groups = next(n for n in range(min(max_groups, channels), 0, -1) if channels % n == 0)
    return GroupNorm(num_groups, channels, eps=eps)


class ResidualBlock(nn.Module):
    """Two normalised 3×3 convolutions and a skip connection: `(b in h w) -> (b out h w)`.

    If the widths differ, the skip connection is a 1×1 convolution.
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

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(b in h w)` to `(b out h w)`."""
        hidden = self.conv1(F.silu(self.norm1(x)))  # (b out h w)
        hidden = self.conv2(self.dropout(F.silu(self.norm2(hidden))))  # (b out h w)
        return self.skip(x) + hidden


class AttentionBlock(nn.Module):
    """Single-head self-attention over the cells of a feature map, and a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.attention = MultiHeadAttention(channels, num_heads=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(b c h w)` to `(b c h w)`."""
        rows = self.norm(x).flatten(2).transpose(1, 2)  # (b h·w c)
        rows = self.attention(rows)  # (b h·w c)
        return x + rows.transpose(1, 2).reshape(x.shape)


class MiddleBlock(nn.Sequential):
    """Residual block, attention, residual block at the smallest resolution."""

    def __init__(self, channels: int, dropout: float = 0.0) -> None:
        super().__init__(
            ResidualBlock(channels, channels, dropout),
            AttentionBlock(channels),
            ResidualBlock(channels, channels, dropout),
        )


class Downsample(nn.Module):
    """Halves height and width by a strided convolution, padded on the right and bottom only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(b c h w)` to `(b c h/2 w/2)`."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Doubles height and width by repeating pixels, then convolves (no checkerboard artefacts)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(b c h w)` to `(b c 2h 2w)`."""
        with torch.autocast(x.device.type, enabled=False):  # CUDA's would copy to float32
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.conv(x)


def run_level(level: nn.Module, x: Tensor, checkpointing: bool) -> Tensor:
    """Calls a level; `checkpointing` recomputes its activations in the backward pass.

    Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(level, x, use_reentrant=False)
    return level(x)
