"""LlamaGen's image tokenizer (Sun et al. 2024, "Autoregressive Model Beats Diffusion", §2.1)."""

from collections.abc import Mapping
from typing import Any

from taming.interop.layouts import AutoencoderLayout, autoencoder_names, patch_discriminator
from taming.interop.weights import ForeignWeights, Imported, is_weights, note_ignored
from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN

__all__ = ["PUBLISHED", "convert"]

LAYOUT = AutoencoderLayout(
    levels=("conv_blocks", "conv_blocks"), residual="res", middle=("mid.0", "mid.1", "mid.2")
)
RESOLUTION = 256  # of their training; the weights do not depend on it
DEFAULTS: dict[str, Any] = {  # of their `ModelArgs`
    "codebook_size": 16384, "codebook_embed_dim": 8, "codebook_l2_norm": True,
    "codebook_show_usage": True, "commit_loss_beta": 0.25, "entropy_loss_ratio": 0.0,
    "encoder_ch_mult": [1, 1, 2, 2, 4], "decoder_ch_mult": [1, 1, 2, 2, 4], "z_channels": 256,
    "dropout_p": 0.0,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "VQ-8": {"encoder_ch_mult": [1, 2, 2, 4], "decoder_ch_mult": [1, 2, 2, 4]},
    "VQ-16": {},
}


def convert(content: Any, config: Mapping[str, Any]) -> Imported:
    """Converts a checkpoint of LlamaGen's tokenizer to a VQGAN with l2-normalised codes.

    The architecture is CompVis' autoencoder with attention on the lowest level only. A training
    checkpoint gives its EMA weights, as in LlamaGen's scripts. A patch discriminator becomes the
    part `discriminator`.

    Args:
        content: the checkpoint, a dictionary with `ema` or `model`.
        config: arguments of their `ModelArgs`, or `vq_model`, a published size.
    """
    weights = ForeignWeights.find(content, "ema", "model", "state_dict")
    size = config.get("vq_model", "VQ-16")
    if size not in PUBLISHED:
        raise UserError(f"vq_model={size} is unknown. Choose one of {', '.join(PUBLISHED)}.")
    arguments = {**DEFAULTS, **PUBLISHED[size], **config}
    multipliers = list(arguments["encoder_ch_mult"])
    if multipliers != list(arguments["decoder_ch_mult"]):
        raise UserError(
            f"encoder_ch_mult={multipliers} differs from decoder_ch_mult="
            f"{arguments['decoder_ch_mult']}. Only a symmetric tokenizer can be imported."
        )
    vqgan = VQGAN(
        resolution=RESOLUTION,
        base_channels=128,
        channel_multipliers=multipliers,
        num_residual_blocks=2,
        attention_resolutions=[RESOLUTION >> (len(multipliers) - 1)],
        latent_channels=arguments["z_channels"],
        dropout=arguments["dropout_p"],
        quantizer={
            "kind": "vector",
            "codebook_size": arguments["codebook_size"],
            "codebook_dim": arguments["codebook_embed_dim"],
            "commitment_weight": arguments["commit_loss_beta"],
            "cosine": arguments["codebook_l2_norm"],
        },
    )
    codebook = {"quantizer.codebook": "quantize.embedding.weight"}
    saved_model = weights.fill(vqgan, {**autoencoder_names(vqgan, LAYOUT), **codebook})
    weights.drop("quantize.codebook_used", "a record of the last codes of their training")
    notes: list[str] = []
    if is_weights(content.get("discriminator")):
        scores = ForeignWeights(content["discriminator"])
        discriminator = patch_discriminator(scores, "", vqgan.image_channels)
        if discriminator is None:
            notes.append("dropped the discriminator: it is not a patch discriminator")
        else:
            saved_model.parts["discriminator"] = discriminator
            notes += [f"discriminator: {note}" for note in scores.finish()]
        weights.other_entries.remove("discriminator")
    notes = [*weights.finish(), *notes, *note_ignored(config, {*DEFAULTS, "vq_model"})]
    return Imported(saved_model, notes)
