"""Starting stage 1 from a model that is trained already."""

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

    Args:
        checkpoint: the model to start from; None to train the configured model from scratch.
        mode: as for `finetuned_vqgan`.
        configured: the model of the configuration.
        adversary: the adversary of the configuration.

    Raises:
        UserError: if the mode needs a checkpoint; and as `finetuned_vqgan`.
    """
    if checkpoint is None and mode == "whole":
        return configured
    if checkpoint is None:
        raise UserError(
            f"finetune.mode={mode} needs a model to start from. Give finetune.checkpoint=PATH."
        )
    saved = VQGAN.load_saved(checkpoint)
    vqgan = finetuned_vqgan(saved, mode, configured)
    if vqgan.config != configured.config:
        warn(
            "note: the shape comes from %s, so other settings of `model` have no effect "
            "(finetune.mode=new_codebook takes model.quantizer)",
            checkpoint,
        )
    finetuned_adversary(saved, adversary)
    return vqgan


def finetuned_vqgan(saved: SavedModel, mode: FinetuningMode, configured: VQGAN) -> VQGAN:
    """Builds a VQGAN that begins with the weights of a saved one.

    Args:
        saved: the model to begin with.
        mode: `"whole"`; `"decoder"`, which builds the same model (its training then leaves encoder
            and codebook alone); or `"new_codebook"`: another quantizer, which begins anew, and with
            it the 1×1 convolutions around it if the width of the codes changes.
        configured: the model of the configuration. It gives the resolution of the new images
            (attention stays in the levels it was in), the new quantizer, and without
            `"new_codebook"` the settings of the quantizer's training.

    Raises:
        UserError: for images of another number of channels, or label maps for pictures.
    """
    config, new = dict(saved.config), configured.config
    config.setdefault("label_maps", configured.label_maps)  # an older model does not say
    for name in ("image_channels", "label_maps"):
        if config[name] != new[name]:
            raise UserError(
                f"the model to fine-tune has {name}={config[name]}, and the new images need "
                f"{new[name]} (data.channels; training.reconstruction=cross_entropy is for label "
                "maps)."
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
        state = VQGAN.from_saved(saved).state_dict()  # in the shapes that the weights have today
        config["quantizer"] = dict(new["quantizer"])
        fresh = VQGAN(**config).state_dict()
        kept = {
            name: tensor
            for name, tensor in state.items()
            if not name.startswith("quantizer.") and tensor.shape == fresh[name].shape
        }
        state = {**fresh, **kept}
    elif new["quantizer"]["kind"] == config["quantizer"]["kind"]:
        names = configured.quantizer.training_settings
        training = {name: value for name, value in new["quantizer"].items() if name in names}
        config["quantizer"] = {**config["quantizer"], **training}
    return VQGAN.from_saved(SavedModel("vqgan", config, state)).train()


def finetuned_adversary(saved: SavedModel, adversary: Adversary | None) -> None:
    """Gives the adversary the discriminator the saved model was trained with, if it fits."""
    if adversary is None:
        return
    found = saved.parts.get("discriminator")
    if found is None:
        log.info("the model to fine-tune has no discriminator: it begins anew")
    elif found.config != adversary.discriminator.config:
        configured = adversary.discriminator.config
        log.warning(
            "the model to fine-tune has a discriminator of another shape, so it begins anew; to go "
            "on with it add %s",
            " ".join(
                f"adversary.discriminator.{name}={str(value).lower()}"
                for name, value in found.config.items()
                if value != configured.get(name)
            ),
        )
    else:
        adversary.discriminator.load_state_dict(found.state)
