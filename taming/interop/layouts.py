"""Names of weights that several programs share: autoencoder, GPT, pix2pix' discriminator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from taming.autoencoder.blocks import AttentionBlock, Downsample, ResidualBlock
from taming.discriminators import ActNorm, PatchDiscriminator
from taming.interop.weights import ForeignWeights, Names
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN
from taming.transformer import GPT

__all__ = ["NameScheme", "autoencoder_names", "block_names", "patch_discriminator"]

# our layers inside a block; the others have the same names
RENAMED = {".skip.": ".nin_shortcut.", ".attention.output.": ".proj_out."}
STACKED = ".attention.query_key_value."
SEPARATE = (".q.", ".k.", ".v.")


@dataclass(frozen=True)
class NameScheme:
    """A program's names of the parts of encoder and decoder."""

    levels: tuple[str, str]  # the lists of levels of encoder and decoder
    residual: str  # list of residual blocks inside a level
    middle: tuple[str, str, str]  # the three blocks of the middle
    # the decoder counts its levels from the largest resolution, and runs from the smallest
    decoder_from_largest: bool = False


def autoencoder_names(vqgan: VQGAN, scheme: NameScheme) -> Names:
    """Maps our names of all weights but the quantizer's to the other program's.

    Their 1×1 convolutions q, k, v and proj_out are our attention's linear layers.
    """
    blocks = {"pre_quantizer": "quant_conv", "post_quantizer": "post_quant_conv"}
    last = len(vqgan.encoder.levels) - 1
    for part, levels in zip(("encoder", "decoder"), scheme.levels, strict=True):
        for index, name in enumerate(scheme.middle):
            blocks[f"{part}.middle.{index}"] = f"{part}.{name}"
        for index, level in enumerate(vqgan.get_submodule(f"{part}.levels").children()):
            from_largest = part == "decoder" and scheme.decoder_from_largest
            number = last - index if from_largest else index
            counts = {scheme.residual: 0, "attn": 0}
            for position, block in enumerate(level.children()):
                if isinstance(block, ResidualBlock | AttentionBlock):
                    kind = scheme.residual if isinstance(block, ResidualBlock) else "attn"
                    name = f"{number}.{kind}.{counts[kind]}"
                    counts[kind] += 1
                elif isinstance(block, Downsample):  # there the last of the level above
                    name = f"{number - 1}.downsample"
                else:
                    name = f"{number}.upsample"
                blocks[f"{part}.levels.{index}.{position}"] = f"{part}.{levels}.{name}"
    names: dict[str, str | Sequence[str]] = {}
    for name in vqgan.state_dict():
        if name.startswith("quantizer."):
            continue
        place = next((place for place in blocks if name.startswith(f"{place}.")), "")
        foreign = blocks.get(place, "") + name.removeprefix(place)
        for layer, renamed in RENAMED.items():
            foreign = foreign.replace(layer, renamed)
        separate = [foreign.replace(STACKED, layer) for layer in SEPARATE]
        names[name] = separate if STACKED in foreign else foreign
    return names


def block_names(gpt: GPT, blocks: str, layers: Mapping[str, Sequence[str]]) -> Names:
    """Maps our names of the weights in a GPT's blocks to those of `blocks` with these layers."""
    names: dict[str, Sequence[str]] = {}
    for name in gpt.state_dict():
        if name.startswith("blocks."):
            _, number, inner = name.split(".", 2)
            layer, _, leaf = inner.rpartition(".")
            names[name] = [f"{blocks}.{number}.{theirs}.{leaf}" for theirs in layers[layer]]
    return names


def patch_discriminator(
    weights: ForeignWeights, prefix: str, image_channels: int
) -> SavedModel | None:
    """Converts the discriminator under `prefix`, shaped by its weights; None if there is none.

    Layer N is `main.N` there and `layers.N` here. ActNorm, s ⊙ (x + loc) there, is s ⊙ x + shift
    here with shift = s ⊙ (loc + b): the convolution before it has a bias b there and none here.
    A discriminator that judges images together with a condition is dropped: we have none.
    """
    first = weights.peek(f"{prefix}main.0.weight")
    if first is None or first.ndim != 4:
        return None
    if first.shape[1] != image_channels:
        weights.drop(prefix, f"it judges {first.shape[1]} channels, images have {image_channels}")
        return None
    numbers = {n.removeprefix(f"{prefix}main.").split(".")[0] for n in weights.names(prefix)}
    last = max(int(number) for number in numbers if number.isdecimal())  # 2 + 3 · num_layers
    has_actnorm = weights.peek(f"{prefix}main.3.loc") is not None
    with torch.device("meta"):  # the file says how large it is: its weights must be there first
        discriminator = PatchDiscriminator(
            image_channels=image_channels,
            base_channels=first.shape[0],
            num_layers=max(1, (last - 2) // 3),
            norm="actnorm" if has_actnorm else "batch",
        )
    made: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(discriminator.layers):
        if isinstance(layer, ActNorm):
            name, foreign = f"layers.{index}", f"{prefix}main.{index}"
            scale = weights.take(f"{foreign}.scale", layer.scale.shape)
            loc = weights.take(f"{foreign}.loc", layer.scale.shape)
            bias = weights.take(f"{prefix}main.{index - 1}.bias", layer.scale.shape)
            made[f"{name}.scale"] = scale
            made[f"{name}.shift"] = scale * (loc + bias)
            made[f"{name}.initialised"] = weights.take(f"{foreign}.initialized", ())
    names = {n: n.replace("layers.", f"{prefix}main.", 1) for n in discriminator.state_dict()}
    return weights.fill(discriminator, names, made)
