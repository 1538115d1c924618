"""CompVis/taming-transformers, first stage: `VQModel` and `GumbelVQ`, with their discriminator."""

from collections.abc import Mapping
from typing import Any

import torch

from taming.errors import UserError
from taming.importers.autoencoder import NameScheme, autoencoder_names, build_vqgan
from taming.importers.interface import Imported, Source, find_weights
from taming.importers.patch_discriminator import patch_discriminator
from taming.importers.weights import ForeignWeights
from taming.serialization import SavedModel
from taming.serialization.foreign_names import shown, shown_names

__all__ = ["COMPVIS_VQGAN", "model_and_params", "target_of"]

SCHEME = NameScheme(
    encoder_levels="down",
    decoder_levels="up",
    decoder_from_largest=True,
    residual="block",
    middle=("mid.block_1", "mid.attn_1", "mid.block_2"),
)
QUANTIZER_NAMES = {
    "vector": {"quantizer.codebook": "quantize.embedding.weight"},
    "gumbel": {
        "quantizer.projection.weight": "quantize.proj.weight",
        "quantizer.projection.bias": "quantize.proj.bias",
        "quantizer.codebook": "quantize.embed.weight",
    },
}
# classes of theirs by the quantizer they have
TARGETS = {
    "VQModel": "vector",
    "VQNoDiscModel": "vector",
    "VQSegmentationModel": "vector",
    "GumbelVQ": "gumbel",
}
REQUIRED = (
    "ch",
    "out_ch",
    "in_channels",
    "num_res_blocks",
    "attn_resolutions",
    "resolution",
    "z_channels",
)
OPTIONAL = (
    "ch_mult",
    "dropout",
    "double_z",
    "resamp_with_conv",
    "give_pre_end",
    "tanh_out",  # this and the next of latent diffusion's code
    "attn_type",
)


def _published(codes: int, **changes: Any) -> dict[str, Any]:
    f16 = {
        "ch": 128,
        "ch_mult": [1, 1, 2, 2, 4],
        "num_res_blocks": 2,
        "attn_resolutions": [16],
        "z_channels": 256,
        "resolution": 256,
        "in_channels": 3,
        "out_ch": 3,
        "double_z": False,
    }
    return {"ddconfig": {**f16, **changes}, "n_embed": codes, "embed_dim": 256}


PUBLISHED = {
    "f16-1024": {"target": "VQModel", "params": _published(1024)},
    "f16-16384": {"target": "VQModel", "params": _published(16384)},
    "f8-gumbel-8192": {
        "target": "GumbelVQ",
        "params": _published(8192, ch_mult=[1, 1, 2, 4], attn_resolutions=[32]),
    },
}


def convert(content: Any, config: Mapping[str, Any], where: str) -> Imported:
    """A checkpoint of `VQModel` or `GumbelVQ` to a VQGAN, its discriminator as a part beside it.

    Where the file has `quantize.used` (their `remap`), the codebook is cut to these codes in their
    order: our index i is code `used[i]` of theirs, as in their remapped indices. Theirs gives a
    latent whose nearest code is not among them a random or an extra index; here it gets the nearest
    of the used ones.

    Their `legacy` placement of β does not matter for a finished model; in training, here β = 0.25
    is on the commitment term, as in the paper. A Gumbel quantizer's temperature schedule belongs to
    the training too, and is not taken over.

    Args:
        content: the checkpoint: a dictionary with `state_dict`.
        config: their project.yaml, its `model`, or that one's `params`.
        where: the file, for messages.

    Raises:
        UserError: if the checkpoint does not fit the configuration, or is of something else.
    """
    tensors, entries = find_weights(content, ("state_dict",), where)
    weights = ForeignWeights(tensors, where)
    arguments = _arguments(config, "quantize.proj.weight" in weights)
    quantizer = arguments["quantizer"]
    names = QUANTIZER_NAMES[quantizer["kind"]]
    notes = []
    used = weights.peek("quantize.used")
    if used is not None:
        size = quantizer["codebook_size"]
        weights.keep_rows(list(names.values()), _checked(used, size, where))
        quantizer["codebook_size"] = len(used)
        notes.append(
            f"kept the {len(used)} codes of {size} that `quantize.used` lists, in its order: "
            "indices are the remapped ones"
        )
        weights.take("quantize.used", used.shape)
    elif model_and_params(config)[1].get("remap") is not None:
        weights.take("quantize.used", (quantizer["codebook_size"],))  # noted as missing
    vqgan = build_vqgan(arguments)
    state = weights.fill(vqgan, {**autoencoder_names(vqgan, SCHEME), **names})
    discriminator = patch_discriminator(weights, "loss.discriminator.", vqgan.image_channels)
    weights.drop("loss.perceptual_loss.", "LPIPS brings its own network")
    weights.drop("colorize", "random colours for showing label maps")
    weights.finish()
    parts = {} if discriminator is None else {"discriminator": discriminator}
    shape = model_and_params(config)[1]["ddconfig"]
    ignored = sorted(set(shape) - {*REQUIRED, *OPTIONAL}, key=shown)
    if ignored:
        notes.append(f"no arguments of ddconfig, and ignored: {shown_names(ignored)}")
    if entries:
        notes.append(f"left out beside the weights: {shown_names(entries)}")
    return Imported(SavedModel("vqgan", vqgan.config, state, parts), weights.notes + notes)


COMPVIS_VQGAN = Source(convert, PUBLISHED)


def model_and_params(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Their `model` (target and params), and the params, from any level of their project.yaml."""
    model = config.get("model", config)
    params = model.get("params", model) if isinstance(model, Mapping) else None
    if not isinstance(params, Mapping):
        raise UserError("the config's `model` is not made of a `target` and `params`.")
    return model, params


def target_of(config: Mapping[str, Any]) -> str:
    """The class a part of their configuration names, without its module; "" if it names none."""
    return str(config.get("target", "")).rsplit(".", 1)[-1]


def _arguments(config: Mapping[str, Any], has_projection: bool) -> dict[str, Any]:
    """Our VQGAN's arguments; theirs, with their defaults, are those of their classes."""
    model, params = model_and_params(config)
    kind = "gumbel" if has_projection else "vector"
    if "target" in model:
        target = target_of(model)
        if target not in TARGETS:
            raise UserError(
                f"the config is of {target}, and this source imports {', '.join(TARGETS)}."
            )
        kind = TARGETS[target]
    shape = params.get("ddconfig")
    if not isinstance(shape, Mapping):
        raise UserError(
            "the config has no `ddconfig`: give the project.yaml beside the checkpoint, its "
            "`model` or that one's `params`."
        )
    absent = [f"ddconfig.{name}" for name in REQUIRED if name not in shape]
    absent += [name for name in ("n_embed", "embed_dim") if name not in params]
    if absent:
        raise UserError(f"the config lacks {', '.join(absent)}.")
    unsupported = {
        "double_z is true: this is no VQ model": shape.get("double_z", False),
        "resamp_with_conv is false": not shape.get("resamp_with_conv", True),
        "in_channels is not out_ch": shape["in_channels"] != shape["out_ch"],
        "give_pre_end is true": shape.get("give_pre_end", False),
        "tanh_out is true": shape.get("tanh_out", False),
        "attn_type is not vanilla": shape.get("attn_type", "vanilla") != "vanilla",
    }
    for what, present in unsupported.items():
        if present:
            raise UserError(f"the config's ddconfig.{what}; this program has no such model.")
    quantizer = {
        "kind": kind,
        "codebook_size": params["n_embed"],
        "codebook_dim": params["embed_dim"],
    }
    if kind == "gumbel":
        quantizer["kl_weight"] = params.get("kl_weight", 1e-8)
    label_maps = target_of(model) == "VQSegmentationModel" or (
        params.get("image_key") == "segmentation" or params.get("colorize_nlabels") is not None
    )
    return {
        "image_channels": shape["in_channels"],
        "label_maps": label_maps,
        "resolution": shape["resolution"],
        "base_channels": shape["ch"],
        "channel_multipliers": shape.get("ch_mult", [1, 2, 4, 8]),
        "num_residual_blocks": shape["num_res_blocks"],
        "attention_resolutions": shape["attn_resolutions"],
        "latent_channels": shape["z_channels"],
        "dropout": shape.get("dropout", 0.0),
        "quantizer": quantizer,
    }


def _checked(used: torch.Tensor, size: int, where: str) -> torch.Tensor:
    """`quantize.used` as an index."""
    whole = used.ndim == 1 and 0 < len(used) <= size and not used.is_floating_point()
    if not whole or used.min() < 0 or used.max() >= size:
        raise UserError(f"{where}: `quantize.used` is no list of codes from 0 to {size - 1}.")
    return used.long()
