"""The patch discriminator of pix2pix (Isola et al. 2017, section 3.2.2)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from taming.autoencoder.blocks import group_norm
from taming.discriminators.actnorm import ActNorm
from taming.runtime.errors import UserError
from taming.serialization import PretrainedModel

__all__ = ["BlurPool", "PatchDiscriminator", "frozen"]


class PatchDiscriminator(PretrainedModel):
    """Scores overlapping patches: images `(b c H W)` to scores `(b 1 h w)`, high for real ones.

    Args:
        image_channels: channels of the images.
        base_channels: width of the first layer; it doubles with each layer, up to eight times.
        num_layers: strided layers. A score sees 34 × 34 pixels with two of them, 70 × 70 with
            three.
        norm: `"batch"` as in the paper; `"group"`, which stores no statistics; or `"actnorm"`, a
            scale and shift per channel that the first batch initialises (see `ActNorm`).
        blur: convolve with stride 1 and subsample with `BlurPool` after the activation, instead of
            stride 2. Scores then depend less on the alignment of the pixel grid. The sizes stay the
            same, a score sees 40 or 84 pixels, and the strided layers compute four times as much.
    """

    kind = "patch_discriminator"

    def __init__(
        self,
        *,
        image_channels: int = 3,
        base_channels: int = 64,
        num_layers: int = 3,
        norm: Literal["batch", "group", "actnorm"] = "group",
        blur: bool = False,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = {
            "image_channels": image_channels,
            "base_channels": base_channels,
            "num_layers": num_layers,
            "norm": norm,
            "blur": blur,
        }
        self.image_channels = image_channels
        self.num_layers = num_layers
        layers: list[nn.Module] = []
        channels = image_channels
        for layer in range(num_layers + 1):
            width = base_channels * min(2**layer, 8)
            strided = layer < num_layers
            stride = 2 if strided and not blur else 1
            # A norm's shift replaces the bias; the first layer has no norm.
            layers.append(nn.Conv2d(channels, width, 4, stride=stride, padding=1, bias=layer == 0))
            if layer > 0:
                layers.append(NORMS[norm](width))
            layers.append(nn.LeakyReLU(0.2))
            if strided and blur:
                layers.append(BlurPool())
            channels = width
        layers.append(nn.Conv2d(channels, 1, 4, padding=1))
        self.layers = nn.Sequential(*layers)
        self.apply(_initialise)

    @property
    def scores_images_independently(self) -> bool:
        """Whether a score depends on no other image of its batch."""
        return self.config["norm"] != "batch"

    def check_resolution(self, resolution: tuple[int, int]) -> None:
        """Raises a `UserError` if images of this (height, width) are too small to give a score."""
        smallest = 3 * 2**self.num_layers
        if min(resolution) < smallest:
            raise UserError(
                f"a patch discriminator of {self.num_layers} layers needs images of at least "
                f"{smallest} pixels, and these are {resolution[0]}×{resolution[1]}. Use fewer "
                "num_layers."
            )

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` to `(b 1 h w)`."""
        return self.layers(images)


class BlurPool(nn.Module):
    """Blurs with [1, 2, 1] / 4 in both directions, then keeps every second pixel.

    Zhang 2019, "Making Convolutional Networks Shift-Invariant Again", section 3.3, "Tri-3".

    The filter removes the highest frequency, which subsampling would fold onto the lowest. Its odd
    length keeps it centred: after a 4×4 convolution of stride 1, size and pixel positions equal
    the same convolution with stride 2.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(b c h w)` to `(b c ⌈h/2⌉ ⌈w/2⌉)`, reflecting at the border; h, w at least 2."""
        padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
        return F.avg_pool2d(F.avg_pool2d(padded, 2, stride=1), 2, stride=2)  # [1, 1] * [1, 1]


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda width: group_norm(width, max(1, min(32, width // 4)), eps=1e-5),
    "actnorm": ActNorm,
}


def _initialise(module: nn.Module) -> None:
    # The DCGAN initialisation, as in pix2pix.
    if isinstance(module, nn.Conv2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Keeps a module in training mode but lets it learn nothing within the block.

    Batch normalisation updates no running statistics and `ActNorm` is not initialised. Weights get
    no gradient, because a compiled module would compute all gradients where only the images'
    gradient is needed.
    """
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d | ActNorm)]
    tracking = [norm.track_running_stats for norm in norms]
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        for norm in norms:
            norm.track_running_stats = False
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for norm, tracked in zip(norms, tracking, strict=True):
            norm.track_running_stats = tracked
        for parameter in learning:
            parameter.requires_grad_(True)
