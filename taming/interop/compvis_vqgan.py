"""CompVis/taming-transformers, stage 1: `VQModel` and `GumbelVQ`, with their discriminator."""

from collections.abc import Mapping
from typing import Any

import torch

from taming.interop.layouts import AutoencoderLayout, autoencoder_names, patch_discriminator
from taming.interop.weights import ForeignWeights, Imported, note_ignored
from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN

__all__ = ["LAYOUT", "PUBLISHED", "TARGETS", "convert", "model_and_params", "target_of"]

LAYOUT = AutoencoderLayout(
    levels=("down", "up"),
    residual="block",
    middle=("mid.block_1", "mid.attn_1", "mid.block_2"),
    decoder_counts_from_largest=True,
)
QUANTIZER_NAMES = {
    "vector": {"quantizer.codebook": "quantize.embedding.weight"},
    "gumbel": {
        "quantizer.projection.weight": "quantize.proj.weight",
        "quantizer.projection.bias": "quantize.proj.bias",
        "quantizer.codebook": "quantize.embed.weight",
    },
}
# kind of quantizer by class
TARGETS = {"VQModel": "vector", "VQNoDiscModel": "vector", "VQSegmentationModel": "vector",
    "GumbelVQ": "gumbel"}  # fmt: skip
# arguments that change the computation but not the weights, with the only supported values
FIXED = {"give_pre_end": False, "tanh_out": False}
ARGUMENTS = {"ch", "ch_mult", "out_ch", "in_channels", "num_res_blocks", "attn_resolutions",
    "resolution", "z_channels", "dropout", "double_z", "resamp_with_conv", "attn_type",
    *FIXED}  # fmt: skip


def _published(codes: int, **changes: Any) -> dict[str, Any]:
    f16 = {"ch": 128, "ch_mult": [1, 1, 2, 2, 4], "num_res_blocks": 2, "attn_resolutions": [16],
        "z_channels": 256, "resolution": 256, "in_channels": 3, "out_ch": 3}  # fmt: skip
    return {"ddconfig": {**f16, **changes}, "n_embed": codes, "embed_dim": 256}


PUBLISHED: dict[str, dict[str, Any]] = {
    "f16-1024": {"target": "VQModel", "params": _published(1024)},
    "f16-16384": {"target": "VQModel", "params": _published(16384)},
    "f8-gumbel-8192": {
        "target": "GumbelVQ",
        "params": _published(8192, ch_mult=[1, 1, 2, 4], attn_resolutions=[32]),
    },
}


def convert(content: Any, config: Mapping[str, Any]) -> Imported:
    """Converts a checkpoint of `VQModel` or `GumbelVQ` to a VQGAN, with its discriminator.

    If the file has `quantize.used` (their `remap`), the codebook keeps only those codes, in that
    order: index i here is code `used[i]` there, as in their remapped indices. A latent whose
    nearest code is unused gets a random or an extra index there, and the nearest used code here.

    Two settings of their training have no effect on a finished model and are not converted: the
    `legacy` placement of β, and the temperature schedule of the Gumbel quantizer.

    Args:
        content: the checkpoint, a dictionary with `state_dict`.
        config: their project.yaml, its `model`, or the `params` of the model.
    """
    weights = ForeignWeights.find(content, "state_dict")
    params = model_and_params(config)[1]
    arguments = _vqgan_arguments(config, weights.peek("quantize.proj.weight") is not None)
    quantizer = arguments["quantizer"]
    size = quantizer["codebook_size"]
    names = QUANTIZER_NAMES[quantizer["kind"]]
    used_codes, notes = weights.peek("quantize.used"), []
    if used_codes is not None or params.get("remap") is not None:
        shape = (size,) if used_codes is None else used_codes.shape
        used_codes = weights.take("quantize.used", shape).long()
        quantizer["codebook_size"] = len(used_codes)
        notes.append(
            f"kept the {len(used_codes)} codes of {size} in `quantize.used`, in that order"
        )
    vqgan = VQGAN(**arguments)
    computed: dict[str, torch.Tensor] = {}
    if used_codes is not None:
        for name, foreign in names.items():
            rows = vqgan.get_parameter(name).shape[1:]
            computed[name] = weights.take(foreign, (size, *rows))[used_codes]
    saved_model = weights.fill(vqgan, {**autoencoder_names(vqgan, LAYOUT), **names}, computed)
    discriminator = patch_discriminator(weights, "loss.discriminator.", vqgan.image_channels)
    if discriminator is not None:
        saved_model.parts["discriminator"] = discriminator
    weights.drop("loss.perceptual_loss.", "LPIPS has its own weights file")
    weights.drop("colorize", "random colours that display label maps")
    notes = [*weights.finish(), *notes, *note_ignored(params["ddconfig"], ARGUMENTS)]
    return Imported(saved_model, notes)


def model_and_params(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the model's entry (target and params) and its params, from any level of a config."""
    model = config.get("model", config)
    return model, model.get("params", model)


def target_of(config: Any) -> str:
    """Returns the name of the class that an entry builds, without its module, or ""."""
    target = config.get("target", "") if isinstance(config, Mapping) else ""
    return str(target).rsplit(".", 1)[-1]


def _vqgan_arguments(config: Mapping[str, Any], has_projection: bool) -> dict[str, Any]:
    model, params = model_and_params(config)
    target = target_of(model) or ("GumbelVQ" if has_projection else "VQModel")
    if target not in TARGETS:
        raise UserError(
            f"the config describes {target}, but this source imports {', '.join(TARGETS)}."
        )
    shape = params["ddconfig"]
    for name, value in FIXED.items():
        if shape.get(name, value) != value:
            raise UserError(f"{name}={shape[name]} in the config is not supported.")
    quantizer = {
        "kind": TARGETS[target],
        "codebook_size": params["n_embed"],
        "codebook_dim": params["embed_dim"],
    }
    if target == "GumbelVQ":
        quantizer["kl_weight"] = params.get("kl_weight", 1e-8)
    return {
        "image_channels": shape["in_channels"],
        "label_maps": target == "VQSegmentationModel"
        or params.get("image_key") == "segmentation"
        or params.get("colorize_nlabels") is not None,
        "resolution": shape["resolution"],
        "base_channels": shape["ch"],
        "channel_multipliers": shape.get("ch_mult", [1, 2, 4, 8]),
        "num_residual_blocks": shape["num_res_blocks"],
        "attention_resolutions": shape["attn_resolutions"],
        "latent_channels": shape["z_channels"],
        "dropout": shape.get("dropout", 0.0),
        "quantizer": quantizer,
    }
