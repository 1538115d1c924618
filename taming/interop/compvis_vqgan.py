"""CompVis/taming-transformers, first stage: `VQModel` and `GumbelVQ`, with their discriminator."""

from collections.abc import Mapping
from typing import Any

import torch

from taming.interop.layouts import NameScheme, autoencoder_names, patch_discriminator
from taming.interop.weights import ForeignWeights, Imported, note_ignored
from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN

__all__ = ["PUBLISHED", "TARGETS", "convert", "model_and_params", "target_of"]

SCHEME = NameScheme(
    levels=("down", "up"),
    residual="block",
    middle=("mid.block_1", "mid.attn_1", "mid.block_2"),
    decoder_from_largest=True,
)
QUANTIZER_NAMES = {
    "vector": {"quantizer.codebook": "quantize.embedding.weight"},
    "gumbel": {
        "quantizer.projection.weight": "quantize.proj.weight",
        "quantizer.projection.bias": "quantize.proj.bias",
        "quantizer.codebook": "quantize.embed.weight",
    },
}
# quantizers by the class that has them
TARGETS = {"VQModel": "vector", "VQNoDiscModel": "vector", "VQSegmentationModel": "vector",
    "GumbelVQ": "gumbel"}  # fmt: skip
# arguments that change what a model computes without changing its weights, and our values
FIXED = {"give_pre_end": False, "tanh_out": False}
KNOWN = {"ch", "ch_mult", "out_ch", "in_channels", "num_res_blocks", "attn_resolutions",
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
    """Converts a checkpoint of `VQModel` or `GumbelVQ` to a VQGAN with its discriminator as a part.

    Where the file has `quantize.used` (their `remap`), the codebook is cut to these codes in their
    order: our index i is code `used[i]` there, as in the remapped indices. There, a latent whose
    nearest code is not among them gets a random or an extra index; here it gets the nearest of the
    used ones.

    Their `legacy` placement of β does not matter for a finished model; in training, here β = 0.25
    is on the commitment term, as in the paper. A Gumbel quantizer's temperature schedule belongs to
    the training too, and is not taken over.

    Args:
        content: the checkpoint: a dictionary with `state_dict`.
        config: their project.yaml, its `model`, or that one's `params`.
    """
    weights = ForeignWeights.find(content, "state_dict")
    params = model_and_params(config)[1]
    arguments = _arguments(config, weights.peek("quantize.proj.weight") is not None)
    quantizer = arguments["quantizer"]
    size = quantizer["codebook_size"]
    names = QUANTIZER_NAMES[quantizer["kind"]]
    used, notes = weights.peek("quantize.used"), []
    if used is not None or params.get("remap") is not None:
        used = weights.take("quantize.used", (size,) if used is None else used.shape).long()
        quantizer["codebook_size"] = len(used)
        notes.append(
            f"kept the {len(used)} codes of {size} that `quantize.used` lists, in its order: "
            "indices are the remapped ones"
        )
    vqgan = VQGAN(**arguments)
    made: dict[str, torch.Tensor] = {}
    if used is not None:
        for name, foreign in names.items():
            rows = vqgan.get_parameter(name).shape[1:]
            made[name] = weights.take(foreign, (size, *rows))[used]
    saved = weights.fill(vqgan, {**autoencoder_names(vqgan, SCHEME), **names}, made)
    discriminator = patch_discriminator(weights, "loss.discriminator.", vqgan.image_channels)
    if discriminator is not None:
        saved.parts["discriminator"] = discriminator
    weights.drop("loss.perceptual_loss.", "LPIPS brings its own network")
    weights.drop("colorize", "random colours for showing label maps")
    notes = [*weights.finish(), *notes, *note_ignored(params["ddconfig"], KNOWN)]
    return Imported(saved, notes)


def model_and_params(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns `model` (target and params), and the params, from any level of a project.yaml."""
    model = config.get("model", config)
    return model, model.get("params", model)


def target_of(config: Any) -> str:
    """Returns the class that a part of the config names, without its module; "" if none."""
    target = config.get("target", "") if isinstance(config, Mapping) else ""
    return str(target).rsplit(".", 1)[-1]


def _arguments(config: Mapping[str, Any], has_projection: bool) -> dict[str, Any]:
    """Returns the arguments of the VQGAN."""
    model, params = model_and_params(config)
    target = target_of(model) or ("GumbelVQ" if has_projection else "VQModel")
    if target not in TARGETS:
        raise UserError(f"the config is of {target}, and this source imports {', '.join(TARGETS)}.")
    shape = params["ddconfig"]
    for name, value in FIXED.items():
        if shape.get(name, value) != value:
            raise UserError(f"the config's {name} is {shape[name]}: there is no such model here.")
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
