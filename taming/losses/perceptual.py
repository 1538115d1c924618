"""How different two images look: differences of a pretrained network's features.

`LPIPSLoss` is the published measure, from the `lpips` package. `FeatureLoss` compares the features
of any torchvision backbone from a weights file; it is not LPIPS and its values must not be called
so.
"""

import pickle
import warnings
from pathlib import Path

import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from taming.errors import MissingPathError, UserError
from taming.losses.frozen import FrozenNetwork

__all__ = ["FeatureLoss", "LPIPSLoss"]

WAYS_OUT = (
    "Or use perceptual=none (no perceptual loss), or perceptual=features with a weights "
    "file you have."
)


class LPIPSLoss(nn.Module):
    """LPIPS: how different two images look.

    Zhang et al. 2018, "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric".

    Args:
        backbone: `"vgg"` or `"alex"`.
        pretrained: with ImageNet weights from torchvision's cache, or its download. False is for
            timing and tests: random weights, named so because their values mean nothing.

    Raises:
        UserError: if the weights are neither on disk nor can be downloaded.
    """

    WEIGHTS = {  # noqa: RUF012
        "vgg": torchvision.models.VGG16_Weights.IMAGENET1K_V1,
        "alex": torchvision.models.AlexNet_Weights.IMAGENET1K_V1,
    }

    def __init__(self, *, backbone: str = "vgg", pretrained: bool = True) -> None:
        super().__init__()
        if backbone not in self.WEIGHTS:
            raise UserError(f"perceptual loss: backbone is 'vgg' or 'alex', not {backbone!r}.")
        if pretrained:
            self._require_weights(self.WEIGHTS[backbone].url)
        import lpips

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lpips calls torchvision by arguments it deprecated
            network = lpips.LPIPS(
                net=backbone, pretrained=True, pnet_rand=not pretrained, verbose=False
            )
        self.lpips = FrozenNetwork(network)

    def forward(self, reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Two `(b c H W)` in [-1, 1] to their mean LPIPS distance, a scalar; c is 3 or 1."""
        return self.lpips(_three_channels(reconstructions), _three_channels(images)).mean()

    @staticmethod
    def _require_weights(url: str) -> None:
        path = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[1]
        if path.is_file():
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), progress=True)
        except OSError as error:
            raise UserError(
                f"the perceptual loss `lpips` needs ImageNet weights that are not at {path}, and "
                f"downloading {url} failed ({error}). Put that file there by hand. {WAYS_OUT}"
            ) from error


class FeatureLoss(nn.Module):
    """Mean squared difference of normalised features of a torchvision backbone.

    At each chosen layer features are scaled to unit length along the channels, as in LPIPS eq. 1,
    but with equal weights for all channels and layers: a distance between 0 and 4.

    Args:
        backbone: name of a torchvision model with a `features` part: `"squeezenet1_1"`, `"vgg16"`,
            `"alexnet"`.
        weights: file of its weights in torchvision's key names, `.safetensors` or `.pth`.

    Raises:
        MissingPathError: if the weights file does not exist.
        UserError: if it does not fit the backbone.
    """

    LAYERS = {  # noqa: RUF012  indices into `features`: after each activation that ends a stage
        "squeezenet1_1": (1, 4, 7, 9, 10, 11, 12),
        "vgg16": (3, 8, 15, 22, 29),
        "alexnet": (1, 4, 7, 9, 11),
    }

    def __init__(self, *, backbone: str, weights: str | Path) -> None:
        super().__init__()
        if backbone not in self.LAYERS:
            raise UserError(
                f"perceptual loss: backbone {backbone!r} is unknown; known: "
                f"{', '.join(self.LAYERS)}."
            )
        self.layers = self.LAYERS[backbone]
        network = getattr(torchvision.models, backbone)(weights=None).features
        network.load_state_dict(_feature_weights(Path(weights), network.state_dict()))
        self.features = FrozenNetwork(network[: max(self.layers) + 1])
        self.mean: torch.Tensor
        self.std: torch.Tensor
        mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
        std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Two `(b c H W)` in [-1, 1] to their mean feature distance, a scalar; c is 3 or 1."""
        with torch.no_grad():
            targets = self._features(images)
        loss = reconstructions.new_zeros((), dtype=torch.float32)
        for feature, target in zip(self._features(reconstructions), targets, strict=True):
            loss = loss + (feature - target).square().sum(1).mean()
        return loss / len(targets)

    def _features(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = ((_three_channels(images) + 1) / 2 - self.mean) / self.std
        features = []
        for index, layer in enumerate(self.features.network.children()):
            x = layer(x)
            if index in self.layers:
                unit = x.float()
                features.append(unit / (unit.square().sum(1, keepdim=True) + 1e-10).sqrt())
        return features


def _three_channels(images: torch.Tensor) -> torch.Tensor:
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


def _feature_weights(path: Path, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise MissingPathError(
            f"perceptual loss: the weights file {path} does not exist. Give perceptual.weights a "
            "file in torchvision's key names (.safetensors or .pth), or use perceptual=none."
        )
    try:
        if path.suffix == ".safetensors":
            weights = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise UserError(
            f"perceptual loss: {path} is no weights file, or damaged ({first_line})."
        ) from error
    found = {
        name.removeprefix("features."): tensor
        for name, tensor in weights.items()
        if name.startswith("features.")
    }
    differing = sorted(
        name
        for name in expected.keys() | found.keys()
        if name not in expected or name not in found or expected[name].shape != found[name].shape
    )
    if differing:
        raise UserError(
            f"perceptual loss: {path} does not fit the backbone; differing keys: "
            f"{', '.join(differing[:4])}{' …' if len(differing) > 4 else ''}."
        )
    return found
