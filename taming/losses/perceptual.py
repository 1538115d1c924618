"""Perceptual distances between images, from the features of a pretrained network.

`LPIPSLoss` is the published measure, from the `lpips` package. `FeatureLoss` compares the features
of any torchvision backbone from a weights file. It is not LPIPS, and its values must not be
reported as LPIPS.
"""

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from taming.losses.backbone import Backbone, FrozenNetwork
from taming.runtime.errors import UserError

__all__ = ["FeatureLoss", "LPIPSLoss"]

ALTERNATIVES = (
    "Or train with perceptual=none or with perceptual=features and a weights file you have, and "
    "leave lpips out in reconstruct and evaluate."
)


class LPIPSLoss(nn.Module):
    """LPIPS distance of two images.

    Zhang et al. 2018, "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric",
    equation 1.

    Args:
        backbone: `"vgg"` or `"alex"`.
        pretrained: use ImageNet weights from torchvision's cache or download. False uses random
            weights, for timing and tests; their distances mean nothing.

    Attributes:
        min_side: smallest height and width of the images in pixels.

    Raises:
        UserError: if the weights are damaged, or are not on disk and the download fails.
    """

    MIN_SIDES = {  # noqa: RUF012
        "vgg": Backbone.MIN_SIDES["vgg16"],
        "alex": Backbone.MIN_SIDES["alexnet"],
    }
    WEIGHTS = {  # noqa: RUF012
        "vgg": torchvision.models.VGG16_Weights.IMAGENET1K_V1,
        "alex": torchvision.models.AlexNet_Weights.IMAGENET1K_V1,
    }

    def __init__(self, *, backbone: str = "vgg", pretrained: bool = True) -> None:
        super().__init__()
        if backbone not in self.WEIGHTS:
            raise UserError(
                f"the perceptual loss has backbones 'vgg' and 'alex', not {backbone!r}."
            )
        self.backbone = backbone
        self.min_side = self.MIN_SIDES[backbone]
        url = self.WEIGHTS[backbone].url
        path = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[1]
        import lpips

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # lpips passes deprecated arguments to torchvision
                network = lpips.LPIPS(
                    net=backbone, pretrained=True, pnet_rand=not pretrained, verbose=False
                )
        except OSError as error:
            raise UserError(
                f"LPIPS needs ImageNet weights at {path}, which does not exist, and downloading "
                f"{url} failed ({error}). Put that file there by hand. {ALTERNATIVES}"
            ) from error
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            first_line = str(error).strip().split("\n")[0]
            raise UserError(
                f"the weights of LPIPS in {path} are damaged ({first_line}). Delete that file; the "
                "next run downloads it again."
            ) from error
        self.lpips = FrozenNetwork(network)

    def forward(self, reconstructions: Tensor, images: Tensor) -> Tensor:
        """Returns the mean LPIPS distance of two `(b c H W)` in [-1, 1], a scalar; c is 3 or 1."""
        with torch.no_grad():
            targets = self._features(images)
        heads: Any = self.lpips.network.lins
        features = self._features(reconstructions)
        dtype = torch.promote_types(reconstructions.dtype, torch.float32)
        loss = reconstructions.new_zeros((), dtype=dtype)
        for feature, target, head in zip(features, targets, heads, strict=True):
            difference = feature - target
            squared = (difference * difference).sum((0, 2, 3), dtype=dtype)  # (f,)
            # A head weights the channels at each position; here at all positions at once.
            weighted = (head.model[-1].weight.flatten() * squared).sum()
            loss = loss + weighted / difference[:, 0].numel()
        return loss

    def _features(self, images: Tensor) -> list[Tensor]:
        network: Any = self.lpips.network
        pictures = network.scaling_layer(images.expand(-1, 3, -1, -1))  # (b 3 H W)
        return [unit_length(features) for features in network.net(pictures)]


class FeatureLoss(nn.Module):
    """Mean squared difference of normalised features of a torchvision backbone.

    As in LPIPS (equation 1), the features of each layer are scaled to unit length along the
    channels. Unlike in LPIPS, all channels and layers weigh the same. The distance lies between 0
    and 4.

    Args:
        backbone: name of a torchvision model with a `features` part: `"squeezenet1_1"`, `"vgg16"`,
            `"alexnet"`.
        weights: file of its weights in torchvision's key names, `.safetensors` or `.pth`.

    Attributes:
        min_side: smallest height and width of the images in pixels.

    Raises:
        MissingPathError: if the weights file does not exist.
        UserError: if the weights do not fit the backbone.
    """

    def __init__(self, *, backbone: str, weights: str | Path) -> None:
        super().__init__()
        self.features = Backbone(backbone, weights)
        self.min_side = Backbone.MIN_SIDES[backbone]

    def forward(self, reconstructions: Tensor, images: Tensor) -> Tensor:
        """Returns the mean feature distance of two `(b c H W)` in [-1, 1]; c is 3 or 1."""
        with torch.no_grad():
            targets = self._features(images)
        dtype = torch.promote_types(reconstructions.dtype, torch.float32)
        loss = reconstructions.new_zeros((), dtype=dtype)
        for feature, target in zip(self._features(reconstructions), targets, strict=True):
            loss = loss + (feature - target).square().sum(1).mean(dtype=dtype)
        return loss / len(targets)

    def _features(self, images: Tensor) -> list[Tensor]:
        return [unit_length(features) for features in self.features(images)]


def unit_length(features: Tensor) -> Tensor:
    """Scales `(b f h w)` to length 1 along the channels, in its dtype; 0 stays 0.

    The gradient at 0 is finite, unlike in the `lpips` package, which differentiates a square root.
    """
    with torch.autocast(features.device.type, enabled=False):  # CUDA's would copy to float32
        return F.normalize(features, dim=1, eps=1e-6)
