"""LlamaGen's image tokenizer (Sun et al. 2024, "Autoregressive Model Beats Diffusion", §2.1)."""

from collections.abc import Mapping
from typing import Any

from taming.errors import UserError
from taming.importers.autoencoder import NameScheme, autoencoder_names, build_vqgan
from taming.importers.interface import Imported, Source, find_weights, is_weights
from taming.importers.patch_discriminator import patch_discriminator
from taming.importers.weights import ForeignWeights
from taming.serialization import SavedModel
from taming.serialization.foreign_names import shown, shown_names

__all__ = ["LLAMAGEN_TOKENIZER"]

SCHEME = NameScheme(
    encoder_levels="conv_blocks",
    decoder_levels="conv_blocks",
    decoder_from_largest=False,
    residual="res",
    middle=("mid.0", "mid.1", "mid.2"),
)
RESOLUTION = 256  # they train at; the model does not depend on it
DEFAULTS: dict[str, Any] = {
    "codebook_size": 16384,
    "codebook_embed_dim": 8,
    "codebook_l2_norm": True,
    "codebook_show_usage": True,
    "commit_loss_beta": 0.25,
    "entropy_loss_ratio": 0.0,
    "encoder_ch_mult": [1, 1, 2, 2, 4],
    "decoder_ch_mult": [1, 1, 2, 2, 4],
    "z_channels": 256,
    "dropout_p": 0.0,
}
PARTS = ("encoder", "decoder")
PUBLISHED: dict[str, dict[str, Any]] = {
    "VQ-8": {"encoder_ch_mult": [1, 2, 2, 4], "decoder_ch_mult": [1, 2, 2, 4]},
    "VQ-16": {},
}


def convert(content: Any, config: Mapping[str, Any], where: str) -> Imported:
    """A checkpoint of LlamaGen's tokenizer to a VQGAN with l2-normalised codes.

    The model is that of CompVis with attention on the lowest level only, at any resolution. Of a
    training checkpoint the averaged weights are taken, as their scripts do, and the discriminator
    becomes a part beside the model if it is a patch discriminator.

    Args:
        content: the checkpoint: a dictionary with `model` or `ema`.
        config: arguments of their `ModelArgs`, or `vq_model` with a published size.
        where: the file, for messages.

    Raises:
        UserError: if the checkpoint does not fit the configuration, or is of something else.
    """
    tensors, entries = find_weights(content, ("ema", "model", "state_dict"), where)
    weights = ForeignWeights(tensors, where)
    size = config.get("vq_model")
    if size is not None and str(size) not in PUBLISHED:
        raise UserError(f"vq_model {shown(size)} is unknown; known: {', '.join(PUBLISHED)}.")
    theirs = {**DEFAULTS, **PUBLISHED.get(str(size), {}), **config}
    multipliers, mirrored = (_multipliers(theirs, f"{part}_ch_mult") for part in PARTS)
    if multipliers != mirrored:
        raise UserError(
            f"encoder_ch_mult {multipliers} is not decoder_ch_mult {mirrored}: this program's "
            "decoder mirrors its encoder, and such a tokenizer cannot be imported."
        )
    vqgan = build_vqgan(
        {
            "resolution": RESOLUTION,
            "base_channels": 128,
            "channel_multipliers": multipliers,
            "num_residual_blocks": 2,
            "attention_resolutions": [RESOLUTION >> (len(multipliers) - 1)],
            "latent_channels": theirs["z_channels"],
            "dropout": theirs["dropout_p"],
            "quantizer": {
                "kind": "vector",
                "codebook_size": theirs["codebook_size"],
                "codebook_dim": theirs["codebook_embed_dim"],
                "commitment_weight": theirs["commit_loss_beta"],
                "cosine": theirs["codebook_l2_norm"],
            },
        }
    )
    names = {"quantizer.codebook": "quantize.embedding.weight"}
    state = weights.fill(vqgan, {**autoencoder_names(vqgan, SCHEME), **names})
    weights.drop("quantize.codebook_used", "a record of the last codes of their training")
    weights.finish()
    notes = list(weights.notes)
    parts: dict[str, SavedModel] = {}
    if is_weights(content.get("discriminator")):
        scores = ForeignWeights(content["discriminator"], f"the discriminator in {where}")
        discriminator = patch_discriminator(scores, "", vqgan.image_channels)
        if discriminator is None:
            notes.append("dropped the discriminator: it is not a patch discriminator")
        else:
            scores.finish()
            parts["discriminator"] = discriminator
            notes += [f"{note} of the discriminator" for note in scores.notes]
            entries.remove("discriminator")
    ignored = sorted(set(config) - set(DEFAULTS) - {"vq_model"})
    if ignored:
        notes.append(f"no arguments of the model, and ignored: {', '.join(ignored)}")
    if entries:
        notes.append(f"left out beside the weights: {shown_names(entries)}")
    return Imported(SavedModel("vqgan", vqgan.config, state, parts), notes)


LLAMAGEN_TOKENIZER = Source(convert, PUBLISHED)


def _multipliers(theirs: Mapping[str, Any], name: str) -> list[int]:
    multipliers = theirs[name]
    if not isinstance(multipliers, list | tuple) or not multipliers:
        raise UserError(
            f"the config describes no model: {name} is {multipliers!r}, and must be a list of a "
            "multiple of the width for each level."
        )
    return list(multipliers)
