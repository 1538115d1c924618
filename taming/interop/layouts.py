"""Weight layouts that several programs share: autoencoder, GPT blocks, patch discriminator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from taming.autoencoder.blocks import AttentionBlock, Downsample, ResidualBlock
from taming.discriminators import ActNorm, PatchDiscriminator
from taming.interop.weights import ForeignWeights, Names
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN
from taming.transformer import GPT

__all__ = ["AutoencoderLayout", "autoencoder_names", "block_names", "patch_discriminator"]

# layers inside a block with other names than ours; ours → theirs
RENAMED_LAYERS = {".skip.": ".nin_shortcut.", ".attention.output.": ".proj_out."}
FUSED_LAYER, SEPARATE_LAYERS = ".attention.query_key_value.", (".q.", ".k.", ".v.")


@dataclass(frozen=True)
class AutoencoderLayout:
    """How a program names the blocks of encoder and decoder.

    Attributes:
        levels: the lists of levels of the encoder and of the decoder.
        residual: the list of residual blocks in a level.
        middle: the three blocks of the middle.
        decoder_counts_from_largest: whether the decoder's level 0 has the largest resolution.
    """

    levels: tuple[str, str]
    residual: str
    middle: tuple[str, str, str]
    decoder_counts_from_largest: bool = False


def autoencoder_names(vqgan: VQGAN, layout: AutoencoderLayout) -> Names:
    """Returns the foreign names of all weights outside the quantizer.

    Their 1×1 convolutions q, k, v and proj_out are linear layers here.
    """
    blocks = {"pre_quantizer": "quant_conv", "post_quantizer": "post_quant_conv"}
    last = len(vqgan.encoder.levels) - 1
    for part, levels in zip(("encoder", "decoder"), layout.levels, strict=True):
        for index, name in enumerate(layout.middle):
            blocks[f"{part}.middle.{index}"] = f"{part}.{name}"
        for index, level in enumerate(vqgan.get_submodule(f"{part}.levels").children()):
            reverse = part == "decoder" and layout.decoder_counts_from_largest
            number = last - index if reverse else index
            counts = {layout.residual: 0, "attn": 0}
            for position, block in enumerate(level.children()):
                if isinstance(block, ResidualBlock | AttentionBlock):
                    kind = layout.residual if isinstance(block, ResidualBlock) else "attn"
                    name = f"{number}.{kind}.{counts[kind]}"
                    counts[kind] += 1
                elif isinstance(block, Downsample):  # there it ends the level above
                    name = f"{number - 1}.downsample"
                else:
                    name = f"{number}.upsample"
                blocks[f"{part}.levels.{index}.{position}"] = f"{part}.{levels}.{name}"
    names: dict[str, str | Sequence[str]] = {}
    for name in vqgan.state_dict():
        if name.startswith("quantizer."):
            continue
        prefix = next((block for block in blocks if name.startswith(f"{block}.")), "")
        foreign = blocks.get(prefix, "") + name.removeprefix(prefix)
        for layer, foreign_layer in RENAMED_LAYERS.items():
            foreign = foreign.replace(layer, foreign_layer)
        separate = [foreign.replace(FUSED_LAYER, layer) for layer in SEPARATE_LAYERS]
        names[name] = separate if FUSED_LAYER in foreign else foreign
    return names


def block_names(gpt: GPT, blocks: str, layers: Mapping[str, Sequence[str]]) -> Names:
    """Returns the foreign names of the weights in a GPT's blocks.

    Args:
        gpt: the model.
        blocks: foreign name of the list of blocks.
        layers: foreign names of a block's layers by ours.
    """
    names: dict[str, Sequence[str]] = {}
    for name in gpt.state_dict():
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            layer, _, leaf = rest.rpartition(".")
            names[name] = [f"{blocks}.{number}.{foreign}.{leaf}" for foreign in layers[layer]]
    return names


def patch_discriminator(
    weights: ForeignWeights, prefix: str, image_channels: int
) -> SavedModel | None:
    """Converts the patch discriminator under `prefix`, or returns None.

    The weights give its size. Layer N is `main.N` there and `layers.N` here. ActNorm computes
    s ⊙ (x + loc) there and s ⊙ x + shift here. The convolution before it has a bias b only there,
    so shift = s ⊙ (loc + b). A discriminator that also sees the condition is dropped because this
    program has none.
    """
    first = weights.peek(f"{prefix}main.0.weight")
    if first is None or first.ndim != 4:
        return None
    if first.shape[1] != image_channels:
        reason = f"it takes {first.shape[1]} channels, but images have {image_channels}"
        weights.drop(prefix, reason)
        return None
    numbers = {n.removeprefix(f"{prefix}main.").split(".")[0] for n in weights.names(prefix)}
    last = max(int(number) for number in numbers if number.isdecimal())  # 2 + 3 · num_layers
    has_actnorm = weights.peek(f"{prefix}main.3.loc") is not None
    with torch.device("meta"):  # an untrusted file can state any size
        discriminator = PatchDiscriminator(
            image_channels=image_channels,
            base_channels=first.shape[0],
            num_layers=max(1, (last - 2) // 3),
            norm="actnorm" if has_actnorm else "batch",
        )
    computed: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(discriminator.layers):
        if isinstance(layer, ActNorm):
            foreign, shape = f"{prefix}main.{index}", layer.scale.shape
            scale = weights.take(f"{foreign}.scale", shape)
            loc = weights.take(f"{foreign}.loc", shape)
            bias = weights.take(f"{prefix}main.{index - 1}.bias", shape)
            computed[f"layers.{index}.scale"] = scale
            computed[f"layers.{index}.shift"] = scale * (loc + bias)
            computed[f"layers.{index}.initialised"] = weights.take(f"{foreign}.initialized", ())
    names = {n: n.replace("layers.", f"{prefix}main.", 1) for n in discriminator.state_dict()}
    return weights.fill(discriminator, names, computed)
