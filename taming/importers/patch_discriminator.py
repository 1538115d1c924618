"""The patch discriminator's weights in the layout of pix2pix, which the other programs share."""

import torch
from torch import nn

from taming.discriminators import PatchDiscriminator
from taming.importers.weights import ForeignWeights
from taming.serialization import SavedModel

__all__ = ["patch_discriminator"]


def patch_discriminator(
    weights: ForeignWeights, prefix: str, image_channels: int
) -> SavedModel | None:
    """The discriminator under `prefix`, or None where there is none; its shape is its weights'.

    Layer N is `main.N` there and `layers.N` here. ActNorm, s ⊙ (x + loc) there, is s ⊙ x + shift
    here with shift = s ⊙ (loc + b): the convolution before it has a bias b there and none here.
    One that judges images together with a condition is dropped: here there is no such.
    """
    first = weights.peek(f"{prefix}main.0.weight")
    if first is None or first.ndim != 4:
        return None
    if first.shape[1] != image_channels:
        weights.drop(prefix, f"it judges {first.shape[1]} channels, images have {image_channels}")
        return None
    num_layers = _num_layers(weights.names(f"{prefix}main."), f"{prefix}main.")
    with torch.device("meta"):  # the file says how large it is: its weights must be there first
        discriminator = PatchDiscriminator(
            image_channels=image_channels,
            base_channels=first.shape[0],
            num_layers=num_layers,
            norm="actnorm" if f"{prefix}main.3.loc" in weights else "batch",
        )
    if discriminator.config["norm"] == "actnorm":
        state = _with_actnorm(discriminator, weights, prefix)
    else:
        names = {name: prefix + name.replace("layers.", "main.", 1)
                 for name in discriminator.state_dict()}  # fmt: skip
        state = weights.fill(discriminator, names)
    return SavedModel("patch_discriminator", discriminator.config, state)


def _num_layers(names: list[str], prefix: str) -> int:
    """N of the layers 0, (2, 3), (5, 6), … 2 + 3n, the pairs a convolution and its norm.

    A missing or an unexpected key must not change it, so that the key is named, and nothing else.
    """
    numbers = {name.removeprefix(prefix).split(".")[0] for name in names}
    indices = {int(number) for number in numbers if number.isdecimal() and len(number) < 4}
    most = 2 + 3 * ((len(indices) - 1) // 2)
    return max([1, *((i - 2) // 3 for i in indices if i % 3 == 2 and i <= most)])


def _with_actnorm(
    discriminator: PatchDiscriminator, weights: ForeignWeights, prefix: str
) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    bias = torch.zeros(())  # of the convolution before
    for index, layer in enumerate(discriminator.layers):
        ours, theirs = f"layers.{index}", f"{prefix}main.{index}"
        if isinstance(layer, nn.Conv2d):
            state[f"{ours}.weight"] = weights.take(f"{theirs}.weight", layer.weight.shape)
            bias = weights.take(f"{theirs}.bias", (layer.out_channels,))
            if layer.bias is not None:
                state[f"{ours}.bias"] = bias
        elif not isinstance(layer, nn.LeakyReLU):
            scale = weights.take(f"{theirs}.scale", bias.shape)
            loc = weights.take(f"{theirs}.loc", bias.shape)
            state[f"{ours}.scale"] = scale
            state[f"{ours}.shift"] = scale * (loc + bias)
            state[f"{ours}.initialised"] = weights.take(f"{theirs}.initialized", ()).bool()
    return state
