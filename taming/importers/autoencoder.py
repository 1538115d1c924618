"""Names of the convolutional autoencoder's weights in CompVis' code and in code derived from it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from taming.autoencoder.blocks import AttentionBlock, Downsample, ResidualBlock
from taming.errors import UserError
from taming.vqgan import VQGAN

__all__ = ["NameScheme", "autoencoder_names", "build_vqgan"]

# our layers inside a block; the others have the same names
RENAMED = {
    "skip": "nin_shortcut",
    "attention.query": "q",
    "attention.key": "k",
    "attention.value": "v",
    "attention.output": "proj_out",
}


@dataclass(frozen=True)
class NameScheme:
    """How a program names what encoder and decoder consist of.

    Attributes:
        encoder_levels: the encoder's list of levels.
        decoder_levels: the decoder's.
        decoder_from_largest: whether the decoder's levels are counted from the largest resolution,
            though they run from the smallest.
        residual: list of residual blocks inside a level.
        middle: the three blocks of the middle.
    """

    encoder_levels: str
    decoder_levels: str
    decoder_from_largest: bool
    residual: str
    middle: tuple[str, str, str]


def build_vqgan(arguments: Mapping[str, Any]) -> VQGAN:
    """The VQGAN of these arguments, which a foreign configuration gave.

    Raises:
        UserError: if there is no such model.
    """
    try:
        return VQGAN(**arguments)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise UserError(f"the config describes no model: {error}") from error


def autoencoder_names(vqgan: VQGAN, scheme: NameScheme) -> dict[str, str]:
    """Our names of all weights but the quantizer's, to theirs.

    Their 1×1 convolutions q, k, v and proj_out are our attention's linear layers.
    """
    names: dict[str, str] = {}
    for part in ("encoder", "decoder"):
        module = vqgan.get_submodule(part)
        for layer in ("conv_in", "norm_out", "conv_out"):
            names.update(_layer(f"{part}.{layer}", f"{part}.{layer}"))
        for index, (block, theirs) in enumerate(
            zip(module.get_submodule("middle").children(), scheme.middle, strict=True)
        ):
            names.update(_block(block, f"{part}.middle.{index}", f"{part}.{theirs}"))
    last = len(vqgan.encoder.levels) - 1
    for index, level in enumerate(vqgan.encoder.levels):
        theirs = f"encoder.{scheme.encoder_levels}"
        names.update(_level(level, f"encoder.levels.{index}", theirs, index, scheme))
    for index, level in enumerate(vqgan.decoder.levels):
        number = last - index if scheme.decoder_from_largest else index
        theirs = f"decoder.{scheme.decoder_levels}"
        names.update(_level(level, f"decoder.levels.{index}", theirs, number, scheme))
    names.update(_layer("pre_quantizer", "quant_conv"))
    names.update(_layer("post_quantizer", "post_quant_conv"))
    return names


def _level(
    level: nn.Module, ours: str, theirs: str, number: int, scheme: NameScheme
) -> Iterator[tuple[str, str]]:
    counts = {scheme.residual: 0, "attn": 0}
    for index, block in enumerate(level.children()):
        if isinstance(block, ResidualBlock | AttentionBlock):
            kind = scheme.residual if isinstance(block, ResidualBlock) else "attn"
            name = f"{theirs}.{number}.{kind}.{counts[kind]}"
            counts[kind] += 1
        elif isinstance(block, Downsample):  # theirs is the last of the level above
            name = f"{theirs}.{number - 1}.downsample"
        else:
            name = f"{theirs}.{number}.upsample"
        yield from _block(block, f"{ours}.{index}", name)


def _block(block: nn.Module, ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    for name in block.state_dict():
        layer, _, leaf = name.rpartition(".")
        yield f"{ours}.{name}", f"{theirs}.{RENAMED.get(layer, layer)}.{leaf}"


def _layer(ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    for leaf in ("weight", "bias"):
        yield f"{ours}.{leaf}", f"{theirs}.{leaf}"
