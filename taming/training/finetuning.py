"""Starts stage 1 from a trained model."""

import logging
from typing import Literal

from lightning.pytorch.utilities import rank_zero_only

from taming.runtime.errors import UserError
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN
from taming.training.adversary import Adversary

__all__ = ["FinetuningMode", "finetune", "finetuned_adversary", "finetuned_vqgan"]

log = logging.getLogger("taming")
warn = rank_zero_only(log.warning)

FinetuningMode = Literal["whole", "decoder", "new_codebook"]


def finetune(
    checkpoint: str | None, mode: FinetuningMode, configured: VQGAN, adversary: Adversary | None
) -> VQGAN:
    """Returns the VQGAN to train, and gives the adversary the discriminator of the checkpoint.

    Without a checkpoint it is the configured model. See `finetuned_vqgan` for `mode`.

    Raises:
        UserError: if the mode needs a checkpoint; and as `finetuned_vqgan`.
    """
    if checkpoint is None:
        if mode == "whole":
            return configured
        raise UserError(
            f"finetune.mode={mode} needs a model to start from. Give finetune.checkpoint=PATH."
        )
    saved = VQGAN.load_saved(checkpoint)
    vqgan = finetuned_vqgan(saved, mode, configured)
    if vqgan.config != configured.config:
        warn(
            f"note: the shape comes from {checkpoint}, so other settings of `model` have no effect "
            "(finetune.mode=new_codebook takes model.quantizer)"
        )
    finetuned_adversary(saved, adversary)
    return vqgan


def finetuned_vqgan(saved: SavedModel, mode: FinetuningMode, configured: VQGAN) -> VQGAN:
    """Builds a VQGAN with the weights of a saved one.

    `"whole"` keeps all weights, and so does `"decoder"`, which then trains only the decoder.
    `"new_codebook"` builds a new quantizer, and new 1×1 convolutions around it if the width of the
    codes changes. The configured model gives the resolution (attention stays in its levels), the
    new quantizer and the settings of the quantizer's training.

    Raises:
        UserError: if the number of channels changes, or pictures become label maps.
    """
    config, new = dict(saved.config), configured.config
    config.setdefault("label_maps", configured.label_maps)  # some older models lack it
    for name in ("image_channels", "label_maps"):
        if config[name] != new[name]:
            raise UserError(
                f"The model to fine-tune has {name}={config[name]}, but the new images need "
                f"{new[name]}. See data.channels, and training.reconstruction=cross_entropy for "
                "label maps."
            )
    old_height, new_height = config["resolution"][0], new["resolution"][0]
    config["attention_resolutions"] = [
        new_height >> level
        for level in range(len(config["channel_multipliers"]))
        if old_height >> level in config["attention_resolutions"]
    ]
    config["resolution"] = list(new["resolution"])
    state = saved.state
    if mode == "new_codebook":
        config["quantizer"] = dict(new["quantizer"])
        new_state = VQGAN(**config).state_dict()
        for name, tensor in state.items():
            if not name.startswith("quantizer.") and tensor.shape == new_state[name].shape:
                new_state[name] = tensor
        state = new_state
    elif new["quantizer"]["kind"] == config["quantizer"]["kind"]:
        names = configured.quantizer.training_settings
        settings = {name: value for name, value in new["quantizer"].items() if name in names}
        config["quantizer"] = {**config["quantizer"], **settings}
    return VQGAN.from_saved(SavedModel("vqgan", config, state)).train()


def finetuned_adversary(saved: SavedModel, adversary: Adversary | None) -> None:
    """Loads the discriminator of the saved model into the adversary, if its shape fits."""
    if adversary is None:
        return
    discriminator = saved.parts.get("discriminator")
    if discriminator is None:
        log.info("The model to fine-tune has no discriminator. Training a new one.")
    elif discriminator.config != adversary.discriminator.config:
        configured = adversary.discriminator.config
        overrides = (
            f"adversary.discriminator.{name}={str(value).lower()}"
            for name, value in discriminator.config.items()
            if value != configured.get(name)
        )
        log.warning(
            "The discriminator of the model to fine-tune has another shape. Training a new one. To "
            f"keep it, add {' '.join(overrides)}"
        )
    else:
        adversary.discriminator.load_state_dict(discriminator.state)
