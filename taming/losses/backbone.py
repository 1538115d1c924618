"""Frozen pretrained networks as sources of features."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from taming.runtime.errors import MissingPathError, UserError

__all__ = ["Backbone", "FrozenNetwork", "Normalize", "fitting", "load_weights", "read_weights"]

ALTERNATIVES = "use perceptual=none in training, frechet.weights=null in reconstruct and evaluate"


class FrozenNetwork(nn.Module):
    """Holds a pretrained network that is used but not trained.

    The network moves with its parent module and always stays in evaluation mode. Optimizers and
    checkpoints do not see its weights, which do not belong to the run and can be larger than
    everything else in it. A deep copy, as moving averages make of the training module, shares the
    network and leaves it on the original's device.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._hidden = [network.eval().requires_grad_(False)]  # a list: not registered
        self._is_copy = False

    @property
    def network(self) -> nn.Module:
        """The network."""
        return self._hidden[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = type(self)(self.network)
        copy._is_copy = True
        return copy

    def copy_network(self) -> None:
        """Replaces the shared network of a deep copy by a copy, which moves with this module."""
        self._hidden = [deepcopy(self.network)]
        self._is_copy = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if not self._is_copy:
            self.network._apply(fn, recurse)
        return self

    def forward(self, *args: Any) -> Any:
        """Calls the network."""
        return self.network(*args)


class Normalize(nn.Module):
    """Maps images `(b c H W)` in [-1, 1], c of 3 or 1, to the input of a pretrained network.

    Args:
        mean: mean of each channel of the network's training images in [0, 1]; ImageNet's.
        std: standard deviation of each channel, likewise.
    """

    def __init__(
        self,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the normalised images `(b 3 H W)`."""
        return ((images.expand(-1, 3, -1, -1) + 1) / 2 - self.mean) / self.std


class Backbone(nn.Module):
    """The `features` part of a torchvision network, frozen.

    Args:
        name: `"squeezenet1_1"`, `"vgg16"` or `"alexnet"`.
        weights: file of its weights in torchvision's key names, `.safetensors` or `.pth`.

    Raises:
        MissingPathError: if the weights file does not exist.
        UserError: if the weights do not fit the network.
    """

    LAYERS = {  # noqa: RUF012  indices into `features` of the activations that end a stage
        "squeezenet1_1": (1, 4, 7, 9, 10, 11, 12),
        "vgg16": (3, 8, 15, 22, 29),
        "alexnet": (1, 4, 7, 9, 11),
    }
    MIN_SIDES = {"squeezenet1_1": 17, "vgg16": 16, "alexnet": 31}  # noqa: RUF012  smaller images vanish in pools

    def __init__(self, name: str, weights: str | Path) -> None:
        super().__init__()
        if name not in self.LAYERS:
            raise UserError(
                f"the feature network {name!r} is unknown. Choose one of {', '.join(self.LAYERS)}."
            )
        self.layers = self.LAYERS[name]
        network = getattr(torchvision.models, name)(weights=None).features
        load_weights(network, weights, "features.")
        self.frozen = FrozenNetwork(network[: max(self.layers) + 1])
        self.normalize = Normalize()

    @property
    def network(self) -> nn.Module:
        """The network, up to its last stage."""
        return self.frozen.network

    def forward(self, images: Tensor) -> list[Tensor]:
        """Maps `(b c H W)` in [-1, 1], c of 3 or 1, to each stage's features `(b f h w)`."""
        x = self.normalize(images)  # (b 3 H W)
        features = []
        for index, layer in enumerate(self.network.children()):
            x = layer(x)
            if index in self.layers:
                features.append(x)
        return features


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Reads a file of weights, without executing anything in it.

    Raises:
        MissingPathError: if the file does not exist.
        UserError: if it is damaged or holds more than tensors.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingPathError(
            f"the feature network's weights file {path} does not exist. Give a file in the key "
            f"names of the network's library (.safetensors or .pth), or {ALTERNATIVES}."
        )
    with fitting(path):
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)


def load_weights(network: nn.Module, path: str | Path, prefix: str = "") -> None:
    """Loads the weights whose names start with `prefix` from a file; see `read_weights`."""
    weights = read_weights(path)
    with fitting(path):
        network.load_state_dict(
            {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        )


@contextmanager
def fitting(path: str | Path) -> Iterator[None]:
    """Raises a `UserError` if weights cannot be read or belong to another network."""
    try:
        yield
    except (SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"the feature network's {path} is damaged or belongs to another network: {reason}"
        ) from error
