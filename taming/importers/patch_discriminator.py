"""The patch discriminator's weights in the layout of pix2pix, which the other programs share."""

import torch

from taming.discriminators import PatchDiscriminator
from taming.importers.weights import ForeignWeights
from taming.serialization import SavedModel

__all__ = ["patch_discriminator"]


def patch_discriminator(weights: ForeignWeights, prefix: str) -> SavedModel | None:
    """The discriminator under `prefix`, or None where there is none; its shape is its weights'.

    Layer N is `main.N` there and `layers.N` here. Batch normalisation is taken as it is. ActNorm,
    s ⊙ (x + loc) there, is s ⊙ x + shift here with shift = s ⊙ (loc + bias): the convolution before
    it has a bias there and none here.
    """
    first = weights.peek(f"{prefix}main.0.weight")
    if first is None or first.ndim != 4:
        return None
    kernels = [
        name
        for name in weights.names(f"{prefix}main.")
        if name.endswith(".weight") and getattr(weights.peek(name), "ndim", 0) == 4
    ]
    actnorm = f"{prefix}main.3.loc" in weights
    shape = {
        "image_channels": first.shape[1],
        "base_channels": first.shape[0],
        "num_layers": max(1, len(kernels) - 2),  # all but the first and the last have a norm
    }
    discriminator = PatchDiscriminator(**shape, norm="batch")
    names = {
        name: prefix + name.replace("layers.", "main.", 1) for name in discriminator.state_dict()
    }
    config = {**shape, "norm": "actnorm" if actnorm else "batch"}
    if not actnorm:
        return SavedModel("patch_discriminator", config, weights.fill(discriminator, names))
    state: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(discriminator.layers):
        ours, theirs = f"layers.{index}", f"{prefix}main.{index}"
        if isinstance(layer, torch.nn.Conv2d):
            state[f"{ours}.weight"] = weights.take(f"{theirs}.weight", layer.weight.shape)
            bias = weights.take(f"{theirs}.bias", (layer.out_channels,))
            if layer.bias is not None:
                state[f"{ours}.bias"] = bias
        elif isinstance(layer, torch.nn.BatchNorm2d):
            channels = (layer.num_features,)
            scale = weights.take(f"{theirs}.scale", channels)
            loc = weights.take(f"{theirs}.loc", channels)
            initialised = weights.take(f"{theirs}.initialized", ())
            state[f"{ours}.scale"] = scale
            state[f"{ours}.shift"] = scale * (loc + bias)
            state[f"{ours}.initialised"] = initialised.bool()
    return SavedModel("patch_discriminator", config, state)
