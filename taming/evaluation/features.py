"""Feature networks: pretrained networks that turn images into features, from files of weights."""

import hashlib
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import torchvision
from annotated_types import Ge
from torch import Tensor, nn

from taming.losses import Backbone, FrozenNetwork, Normalize, fitting, load_weights, read_weights
from taming.runtime.contexts import full_precision
from taming.runtime.errors import UserError

__all__ = ["INCEPTION_WEIGHTS", "TENSORFLOW_RESIZE", "FeatureExtractor", "FeatureNetwork",
    "InceptionFeatures", "file_digest", "load_feature_network"]  # fmt: skip

TENSORFLOW_RESIZE = "bilinear as in TensorFlow 1, not antialiased"
INCEPTION_WEIGHTS = "inception-2015-12-05"
INCEPTION_DIGEST = "6726825d"  # start of the SHA-256 of torch-fidelity's file, part of its name
SPATIAL_CHANNELS = 7

KNOWN_NETWORKS = (
    f"Give {', '.join(Backbone.LAYERS)}, another torchvision classifier such as resnet50, a timm "
    "network such as vit_base_patch14_dinov2, or, in evaluate.py, inception."
)


class FeatureNetwork(nn.Module):
    """A frozen network from images to features.

    Attributes:
        num_features: width f of the features.
        description: network and resolution, to be shown with every number.
        digest: SHA-256 of the weights file, in hex.
        resize: how the network brings images to its resolution.
        weights: name of the weights, or the beginning of their digest.
        is_inception: whether the distances are FID and KID.
    """

    num_features: int
    description: str
    digest: str
    resize: str
    weights: str
    is_inception = False

    def logits(self, features: Tensor) -> Tensor:
        """Returns the logits of the Inception Score; other networks have none."""
        raise NotImplementedError

    def with_spatial(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the features and the spatial features of sFID; other networks have none."""
        raise NotImplementedError

    def notes(self, num_images: int) -> list[str]:
        """Returns a warning if there are too few images to estimate the features' covariance."""
        if num_images > self.num_features:
            return []
        return [
            f"{num_images} images are no more than the network's {self.num_features} features. The "
            "Fréchet distance says little then. Do not compare it with one of more images."
        ]


class FeatureExtractor(FeatureNetwork):
    """One feature vector per image, from a pretrained network of torchvision or timm.

    | network | features |
    |---|---|
    | a backbone in `Backbone.LAYERS` | the last stage, averaged over the image |
    | another torchvision classifier, such as `resnet50` | the input of its last linear layer |
    | a timm network, such as `vit_base_patch14_dinov2` (Oquab et al. 2023) | its output |

    Images are resized to one size, bilinearly with antialiasing, so that distances do not depend on
    the size of the images. They are normalised as in the network's training. The network runs in
    float32.

    Args:
        backbone: name of the network.
        weights: file of its weights in the key names of its library.
        resolution: pixels per side that images are resized to. Most networks were trained at 224.
            Below 32 the last stage of some networks is empty.
    """

    def __init__(
        self, *, backbone: str, weights: str | Path, resolution: Annotated[int, Ge(32)] = 224
    ) -> None:
        super().__init__()
        self.resolution = resolution
        layer = "last stage" if backbone in Backbone.LAYERS else "before its classes"
        self.description = f"{backbone}, {layer}, images at {resolution}×{resolution}"
        try:
            network, self.normalize = _load_network(backbone, weights, resolution)
            self.frozen = FrozenNetwork(network)
            with torch.no_grad():
                self.num_features = self(torch.zeros(2, 3, resolution, resolution)).shape[1]
        except (AssertionError, LookupError) as error:  # raised by torchvision and timm
            raise UserError(
                f"frechet.backbone={backbone} cannot be used with {weights} and "
                f"frechet.resolution={resolution}: {error!r}."
            ) from error
        self.digest = file_digest(weights)
        self.resize, self.weights = "bilinear, antialiased", self.digest[:8]

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` in [-1, 1], c of 3 or 1, to `(b f)` float32."""
        size = (self.resolution, self.resolution)
        with torch.autocast(images.device.type, enabled=False), full_precision():
            resized = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
            return self.frozen(self.normalize(resized))


def _load_network(
    backbone: str, weights: str | Path, resolution: int
) -> tuple[nn.Module, Normalize]:
    """Returns a network from normalised images to features, and the normalisation it needs."""
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
            f"The feature network {backbone} is not in torchvision. Networks of timm, such as "
            f"DINOv2, need: pip install 'taming[evaluation]'. {KNOWN_NETWORKS}"
        ) from error
    if not timm.is_model(backbone):
        raise UserError(f"The feature network {backbone} is unknown. {KNOWN_NETWORKS}")
    read_weights(weights)  # explains a damaged file better than timm
    settings: dict[str, Any] = {"img_size": resolution} if backbone.startswith("vit") else {}
    settings["pretrained_cfg_overlay"] = {"file": str(Path(weights).expanduser())}
    with fitting(weights):
        network: Any = timm.create_model(backbone, pretrained=True, **settings)
    network.reset_classifier(0)  # only now, because without its classes timm accepts any weights
    return network


class InceptionFeatures(FeatureNetwork):
    """The 2048 features of FID's Inception network, from torch-fidelity.

    It takes 8-bit images and resizes them to 299×299 like the original in TensorFlow.

    Args:
        weights: torch-fidelity's file `weights-inception-2015-12-05-6726825d.pth`.
    """

    num_features = 2048
    is_inception = True
    resize = TENSORFLOW_RESIZE

    def __init__(self, *, weights: str | Path) -> None:
        super().__init__()
        try:
            from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
        except ImportError as error:
            raise UserError(
                "Inception needs torch-fidelity: pip install 'taming[evaluation]'."
            ) from error
        read_weights(weights)  # refuses a file with code, which torch-fidelity would execute
        path = str(Path(weights).expanduser())
        try:
            network = FeatureExtractorInceptionV3("inception", ["2048"], path)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{path} holds no Inception weights for FID: {reason}") from error
        self.frozen = FrozenNetwork(network)
        self.description = "Inception of FID (torch-fidelity), images at 299×299"
        self.digest = file_digest(weights)
        is_original = self.digest.startswith(INCEPTION_DIGEST)
        self.weights = INCEPTION_WEIGHTS if is_original else self.digest[:8]

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` in [-1, 1], c of 3 or 1, to `(b 2048)` float32."""
        pixels = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        with torch.autocast(images.device.type, enabled=False), full_precision():
            return self.frozen(pixels.expand(-1, 3, -1, -1))[0]

    def with_spatial(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the features, and the spatial features `(b 2023)` of sFID.

        Nash et al. 2021, "Generating Images with Sparse Representations". ADM's evaluator takes the
        first 7 channels of `mixed_6/conv:0` in TensorFlow's graph, 17×17 with the channels last.
        torch-fidelity converts the weights of that layer to `Mixed_6d.branch1x1`.
        """
        network: Any = self.frozen.network
        maps: list[Tensor] = []
        hook = network.Mixed_6d.branch1x1.register_forward_hook(
            lambda _, inputs, output: maps.append(output[:, :SPATIAL_CHANNELS])
        )
        try:
            features = self(images)
        finally:
            hook.remove()
        return features, maps[0].permute(0, 2, 3, 1).flatten(1)

    def logits(self, features: Tensor) -> Tensor:
        """Returns the logits `(b 1008)` of the Inception Score, which leave out the bias."""
        network: Any = self.frozen.network
        return features @ network.fc.weight.to(features.device).T


def file_digest(path: str | Path) -> str:
    """Returns the SHA-256 of a file, in hex."""
    with Path(path).expanduser().open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_feature_network(
    *, backbone: str, weights: str | Path, resolution: Annotated[int, Ge(32)] = 224
) -> FeatureNetwork:
    """Loads `inception` or a `FeatureExtractor`.

    Raises:
        MissingPathError: if the weights file does not exist.
        UserError: if the network is unknown or the file does not fit it.
    """
    if backbone == "inception":
        return InceptionFeatures(weights=weights)
    return FeatureExtractor(backbone=backbone, weights=weights, resolution=resolution)
