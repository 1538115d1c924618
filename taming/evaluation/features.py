"""Networks whose features are compared, from files of weights."""

from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import torchvision
from annotated_types import Ge
from torch import Tensor, nn

from taming.contexts import full_precision
from taming.errors import UserError
from taming.evaluation.contract import file_digest
from taming.losses import Backbone, FrozenNetwork, load_weights, read_weights

__all__ = ["FeatureExtractor", "FeatureNetwork", "InceptionFeatures", "load_feature_network"]


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class FeatureNetwork(nn.Module):
    """A frozen network from images to features.

    Attributes:
        num_features: width f of the result.
        description: network and resolution, for use beside every number.
        digest: SHA-256 of the weights file.
        is_inception: whether distances are FID and KID.
    """

    num_features: int
    description: str
    digest: str
    is_inception = False

    def logits(self, features: Tensor) -> Tensor:
        """Returns the logits that follow from the features; only Inception's are of use."""
        raise NotImplementedError

    def notes(self, num_images: int) -> list[str]:
        """Warns of a distance whose covariance is that of too few images; nothing for enough."""
        if num_images > self.num_features:
            return []
        return [
            f"{num_images} images are no more than the network's {self.num_features} features: the "
            "Fréchet distance says little, and less beside one of more images."
        ]


class FeatureExtractor(FeatureNetwork):
    """The last stage's features of a pretrained network, averaged over the image.

    Images are first resized to one size, bilinearly with antialiasing, so that distances do not
    depend on theirs; then normalised as the network was trained. All in float32.

    Args:
        backbone: name of the network (see `Backbone`).
        weights: file of its weights in torchvision's key names.
        resolution: pixels a side that images are resized to; 224 is what these networks saw, and
            below 32 the last stage has nothing to see.
    """

    def __init__(
        self, *, backbone: str, weights: str | Path, resolution: Annotated[int, Ge(32)] = 224
    ) -> None:
        super().__init__()
        self.backbone = Backbone(backbone, weights)
        self.num_features = Backbone.WIDTHS[backbone]
        self.resolution = resolution
        self.description = f"{backbone}, last stage, images at {resolution}×{resolution}"
        self.digest = file_digest(weights)

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` in [-1, 1], c of 3 or 1, to `(b f)` float32."""
        with torch.autocast(images.device.type, enabled=False), full_precision():
            return self.backbone(_resized(images, self.resolution))[-1].mean((2, 3))


class ClassifierFeatures(FeatureNetwork):
    """What a torchvision classifier's last linear layer receives; see `FeatureExtractor`.

    Args:
        backbone: name of the network in torchvision, such as `resnet50`, `vit_b_16`.
        weights: file of its weights.
        resolution: pixels a side that images are resized to.
    """

    def __init__(self, *, backbone: str, weights: str | Path, resolution: int = 224) -> None:
        super().__init__()
        network = torchvision.models.get_model(backbone, weights=None)
        load_weights(network, weights)
        name, last = [x for x in network.named_modules() if isinstance(x[1], nn.Linear)][-1]
        network.set_submodule(name, nn.Identity())
        self.frozen = FrozenNetwork(network)
        self.num_features = last.in_features
        self.resolution = resolution
        self.description = f"{backbone}, before its classes, images at {resolution}×{resolution}"
        self.digest = file_digest(weights)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` in [-1, 1], c of 3 or 1, to `(b f)` float32."""
        with torch.autocast(images.device.type, enabled=False), full_precision():
            x = (_resized(images, self.resolution).expand(-1, 3, -1, -1) + 1) / 2
            return self.frozen((x - self.mean) / self.std)


class InceptionFeatures(FeatureNetwork):
    """The 2048 features of the Inception network of FID, by torch-fidelity.

    It resizes to 299×299 as the TensorFlow original does, from 8-bit images.

    Args:
        weights: torch-fidelity's file `weights-inception-2015-12-05-6726825d.pth`.
    """

    num_features = 2048
    is_inception = True

    def __init__(self, *, weights: str | Path) -> None:
        super().__init__()
        try:
            from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
        except ImportError as error:
            raise UserError(
                "Inception needs torch-fidelity: pip install 'taming[evaluation]'."
            ) from error
        read_weights(weights)  # torch-fidelity would execute what else is in the file
        path = str(Path(weights).expanduser())
        try:
            network = FeatureExtractorInceptionV3("inception", ["2048"], path)
        except RuntimeError as error:
            why = " ".join(str(error).split())[:300]
            raise UserError(f"{path} holds no weights of Inception for FID: {why}") from error
        self.frozen = FrozenNetwork(network)
        self.description = "Inception of FID (torch-fidelity), images at 299×299"
        self.digest = file_digest(weights)

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` in [-1, 1], c of 3 or 1, to `(b 2048)` float32."""
        pixels = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        with torch.autocast(images.device.type, enabled=False), full_precision():
            return self.frozen(pixels.expand(-1, 3, -1, -1))[0]

    def logits(self, features: Tensor) -> Tensor:
        """Returns the logits `(b 1008)` of the Inception Score: without the bias."""
        network: Any = self.frozen.network
        return features @ network.fc.weight.to(features.device).T


def load_feature_network(
    *, backbone: str, weights: str | Path, resolution: Annotated[int, Ge(32)] = 224
) -> FeatureNetwork:
    """Loads `inception`, a network of `FeatureExtractor`, or any classifier of torchvision's.

    Raises:
        MissingPathError: if the weights file does not exist.
        UserError: if the network is unknown, or the file does not fit it.
    """
    if backbone == "inception":
        return InceptionFeatures(weights=weights)
    if backbone in Backbone.LAYERS:
        return FeatureExtractor(backbone=backbone, weights=weights, resolution=resolution)
    if backbone in torchvision.models.list_models(torchvision.models):
        return ClassifierFeatures(backbone=backbone, weights=weights, resolution=resolution)
    raise UserError(
        f"frechet.backbone={backbone} is unknown: give inception, {', '.join(Backbone.LAYERS)}, or "
        "another classifier of torchvision, such as resnet50."
    )


def _resized(images: Tensor, resolution: int) -> Tensor:
    return F.interpolate(images.float(), (resolution, resolution), mode="bilinear", antialias=True)
