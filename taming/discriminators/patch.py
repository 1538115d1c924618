"""The patch discriminator of pix2pix (Isola et al. 2017, §3.2.2)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from taming.errors import UserError

__all__ = ["PatchDiscriminator", "frozen_statistics"]


class PatchDiscriminator(nn.Module):
    """Judges overlapping patches: images `(b c H W)` to scores `(b 1 h w)`, high is real.

    Args:
        image_channels: channels of the images.
        base_channels: width of the first layer; doubles with each layer up to eight times.
        num_layers: strided layers; a score sees 34 pixels with two of them, 70 with three.
        norm: `"batch"` as in the paper, or `"group"`, which keeps no statistics.
    """

    def __init__(
        self,
        *,
        image_channels: int = 3,
        base_channels: int = 64,
        num_layers: int = 3,
        norm: str = "group",
    ) -> None:
        super().__init__()
        if norm not in ("batch", "group"):
            raise UserError(f"discriminator: norm is 'batch' or 'group', not {norm!r}.")
        if num_layers < 1:
            raise UserError(f"discriminator: num_layers must be at least 1, not {num_layers}.")
        self.image_channels = image_channels
        layers: list[nn.Module] = [
            nn.Conv2d(image_channels, base_channels, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
        ]
        channels = base_channels
        for layer in range(1, num_layers + 1):
            width = base_channels * min(2**layer, 8)
            stride = 2 if layer < num_layers else 1
            layers += [
                nn.Conv2d(channels, width, 4, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(width)
                if norm == "batch"
                else nn.GroupNorm(min(32, width // 4), width),
                nn.LeakyReLU(0.2),
            ]
            channels = width
        layers.append(nn.Conv2d(channels, 1, 4, padding=1))
        self.layers = nn.Sequential(*layers)
        self.num_layers = num_layers
        self.apply(_initialise)

    def check_resolution(self, resolution: tuple[int, int]) -> None:
        """Raises a `UserError` if images of this (height, width) are too small to give a score."""
        smallest = 3 * 2**self.num_layers
        if min(resolution) < smallest:
            raise UserError(
                f"a patch discriminator of {self.num_layers} layers needs images of {smallest} "
                f"pixels or more, and these are {resolution[0]}×{resolution[1]}: use fewer "
                "num_layers."
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """`(b c H W) -> (b 1 h w)`."""
        return self.layers(images)


def _initialise(module: nn.Module) -> None:
    # the DCGAN initialisation, as in pix2pix
    if isinstance(module, nn.Conv2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Within it, batch normalisation works as in training but updates no running statistics."""
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    tracking = [norm.track_running_stats for norm in norms]
    try:
        for norm in norms:
            norm.track_running_stats = False
        yield
    finally:
        for norm, tracked in zip(norms, tracking, strict=True):
            norm.track_running_stats = tracked
