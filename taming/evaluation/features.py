"""Images to one feature vector each, for distances between sets of images."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from taming.contexts import full_precision
from taming.errors import UserError
from taming.losses import Backbone

__all__ = ["FeatureExtractor"]


class FeatureExtractor(nn.Module):
    """The last stage's features of a pretrained network, averaged over the image.

    Images are first resized to one size, bilinearly with antialiasing, so that distances do not
    depend on theirs; then normalised as the network was trained. All in float32.

    Args:
        backbone: name of the network (see `Backbone`).
        weights: file of its weights in torchvision's key names.
        resolution: pixels a side that images are resized to; 224 is what these networks saw.

    Attributes:
        num_features: width f of the result.
        description: network and resolution, to be named beside every number.

    Raises:
        MissingPathError: if the weights file does not exist.
        UserError: if it does not fit the network, or the resolution is too small for it.
    """

    MIN_RESOLUTION = 32  # below, the last stage has nothing to see

    def __init__(self, *, backbone: str, weights: str | Path, resolution: int = 224) -> None:
        super().__init__()
        if not isinstance(resolution, int) or resolution < self.MIN_RESOLUTION:
            raise UserError(
                f"the feature network's resolution is {resolution}: give pixels, one number, "
                f"{self.MIN_RESOLUTION} or more."
            )
        self.backbone = Backbone(backbone, weights)
        self.num_features = Backbone.WIDTHS[backbone]
        self.resolution = resolution
        self.description = f"{backbone}, last stage, images at {resolution}×{resolution}"

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """`(b c H W)` in [-1, 1], c of 3 or 1, to `(b f)` float32."""
        with torch.autocast(images.device.type, enabled=False), full_precision():
            images = F.interpolate(
                images.float(), (self.resolution, self.resolution), mode="bilinear", antialias=True
            )
            return self.backbone(images)[-1].mean((2, 3))
