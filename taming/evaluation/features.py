"""Networks whose features are compared, from files of weights."""

from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import torchvision
from annotated_types import Ge
from torch import Tensor, nn

from taming.evaluation.contract import file_digest
from taming.losses import (
    Backbone,
    FrozenNetwork,
    Normalize,
    fitting,
    load_weights,
    read_weights,
)
from taming.runtime.contexts import full_precision
from taming.runtime.errors import UserError

__all__ = ["FeatureExtractor", "FeatureNetwork", "InceptionFeatures", "load_feature_network"]

KNOWN_NETWORKS = (
    f"Give {', '.join(Backbone.LAYERS)}, another classifier of torchvision such as resnet50, a "
    "network of timm such as vit_base_patch14_dinov2, or, to evaluate, inception."
)


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
    """The features of a pretrained network, which are a vector for each image.

    They are, of a torchvision network with `Backbone.LAYERS`, the last stage's, averaged over the
    image; of another classifier of torchvision, such as `resnet50` or `vit_b_16`, what its last
    layer receives; of a network of timm, such as `vit_base_patch14_dinov2` (DINOv2, Oquab et al.
    2023), what it returns.

    Images are first resized to one size, bilinearly with antialiasing, so that distances do not
    depend on theirs; then normalised as the network was trained. All in float32.

    Args:
        backbone: name of the network.
        weights: file of its weights in its library's key names.
        resolution: pixels a side that images are resized to; 224 is what most networks saw, and
            below 32 a last stage has nothing to see.
    """

    def __init__(
        self, *, backbone: str, weights: str | Path, resolution: Annotated[int, Ge(32)] = 224
    ) -> None:
        super().__init__()
        self.resolution = resolution
        what = "last stage" if backbone in Backbone.LAYERS else "before its classes"
        self.description = f"{backbone}, {what}, images at {resolution}×{resolution}"
        try:
            network, self.normalize = _load_network(backbone, weights, resolution)
            self.frozen = FrozenNetwork(network)
            with torch.no_grad():
                self.num_features = self(torch.zeros(2, 3, resolution, resolution)).shape[1]
        except (AssertionError, LookupError) as error:  # from within the libraries
            raise UserError(
                f"frechet.backbone={backbone} cannot be used with {weights} and "
                f"frechet.resolution={resolution}: {error!r}."
            ) from error
        self.digest = file_digest(weights)

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` in [-1, 1], c of 3 or 1, to `(b f)` float32."""
        size = (self.resolution, self.resolution)
        with torch.autocast(images.device.type, enabled=False), full_precision():
            resized = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
            return self.frozen(self.normalize(resized))


def _load_network(
    backbone: str, weights: str | Path, resolution: int
) -> tuple[nn.Module, Normalize]:
    """Returns a network from normalised images to features, and how it wants them normalised."""
    if backbone in Backbone.LAYERS:
        stages = Backbone(backbone, weights).network
        return nn.Sequential(stages, nn.AdaptiveAvgPool2d(1), nn.Flatten()), Normalize()
    if backbone in torchvision.models.list_models(torchvision.models):
        network = torchvision.models.get_model(backbone, weights=None)
        load_weights(network, weights)
        name = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)][-1]
        network.set_submodule(name, nn.Identity())
        return network, Normalize()
    network = _timm_network(backbone, weights, resolution)
    settings: Any = network.pretrained_cfg
    return network, Normalize(settings["mean"], settings["std"])


def _timm_network(backbone: str, weights: str | Path, resolution: int) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise UserError(
            f"the feature network {backbone} is not torchvision's, and those of timm, DINOv2 among "
            f"them, need: pip install 'taming[evaluation]'. {KNOWN_NETWORKS}"
        ) from error
    if not timm.is_model(backbone):
        raise UserError(f"the feature network {backbone} is unknown. {KNOWN_NETWORKS}")
    read_weights(weights)  # says what is wrong with the file
    settings: dict[str, Any] = {"img_size": resolution} if backbone.startswith("vit") else {}
    settings["pretrained_cfg_overlay"] = {"file": str(Path(weights).expanduser())}
    with fitting(weights):
        network: Any = timm.create_model(backbone, pretrained=True, **settings)
    network.reset_classifier(0)  # only now: without its classes timm takes any weights
    return network


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
    """Loads `inception`, or a network of `FeatureExtractor`.

    Raises:
        MissingPathError: if the weights file does not exist.
        UserError: if the network is unknown, or the file does not fit it.
    """
    if backbone == "inception":
        return InceptionFeatures(weights=weights)
    return FeatureExtractor(backbone=backbone, weights=weights, resolution=resolution)
