"""Starting stage 1 from a model that is trained already."""

import inspect
import logging
from collections.abc import Mapping
from typing import Any

from taming.errors import UserError
from taming.serialization import SavedModel
from taming.training.adversary import Adversary
from taming.vqgan import VQGAN

__all__ = ["FINETUNING_MODES", "finetuned_adversary", "finetuned_vqgan", "unused_settings"]

log = logging.getLogger("taming")

FINETUNING_MODES = ("whole", "decoder", "new_codebook")
SHAPE = (
    "base_channels",
    "channel_multipliers",
    "num_residual_blocks",
    "attention_resolutions",
    "latent_channels",
    "dropout",
)
HOW_TRAINED = (  # settings of quantizers that change no code
    "commitment_weight",
    "revive_after",
    "entropy_weight",
    "entropy_temperature",
    "gradient",
    "kl_weight",
    "hard",
    "temperature_start",
    "temperature_end",
    "temperature_steps",
    "temperature_schedule",
)


def finetuned_vqgan(
    saved: SavedModel,
    mode: str,
    *,
    resolution: tuple[int, int],
    image_channels: int,
    label_maps: bool,
    quantizer: Mapping[str, Any],
) -> VQGAN:
    """A VQGAN that begins with the weights of a saved one.

    Args:
        saved: where to begin.
        mode: one of `FINETUNING_MODES`: `"whole"`; `"decoder"`, which builds the same model (its
            training then leaves encoder and codebook alone); or `"new_codebook"`: another
            quantizer, which begins anew, and with it the 1×1 convolutions around it if the width of
            the codes changes.
        resolution: (height, width) of the new images. Attention stays in the levels it was in.
        image_channels: of the new images.
        label_maps: whether the new images are one-hot label maps.
        quantizer: configuration of the new quantizer. Without `"new_codebook"` only what does not
            change its codes is taken from it: how it is trained from now on.

    Raises:
        UserError: for images of another number of channels, or label maps for pictures.
    """
    config = dict(saved.config)
    if config["image_channels"] != image_channels:
        raise UserError(
            f"the model to fine-tune takes images of {config['image_channels']} channels, and "
            f"data.channels is {image_channels}."
        )
    of_maps = config.get("label_maps", label_maps)  # an older model does not say
    if of_maps != label_maps:
        raise UserError(
            f"the model to fine-tune is of {_kind(of_maps)}, and the new images are "
            f"{_kind(label_maps)} (training.reconstruction=cross_entropy is for label maps)."
        )
    config["label_maps"] = label_maps
    old_height, new_height = config["resolution"][0], resolution[0]
    config["attention_resolutions"] = [
        new_height >> level
        for level in range(len(config["channel_multipliers"]))
        if old_height >> level in config["attention_resolutions"]
    ]
    config["resolution"] = list(resolution)
    if mode == "new_codebook":
        config["quantizer"] = dict(quantizer)
    elif quantizer["kind"] == config["quantizer"]["kind"]:
        training = {name: quantizer[name] for name in HOW_TRAINED if name in quantizer}
        config["quantizer"] = {**config["quantizer"], **training}
    state = saved.state
    if mode == "new_codebook":
        fresh = VQGAN(**config).state_dict()
        kept = {
            name: tensor
            for name, tensor in state.items()
            if not name.startswith("quantizer.") and tensor.shape == fresh[name].shape
        }
        state = {**fresh, **kept}
    return VQGAN.from_saved(SavedModel("vqgan", config, state)).train()


def unused_settings(asked: VQGAN, begun: VQGAN) -> dict[str, Any]:
    """What of the `model` that was asked for the fine-tuned one does not have, by name."""
    shape, found = _shape(begun), {}
    for name, value in _shape(asked).items():
        if value != shape[name]:
            found[name] = value
    new, old = asked.config["quantizer"], begun.config["quantizer"]
    if new["kind"] != old["kind"]:
        return found | {"quantizer.kind": new["kind"]}
    arguments = inspect.signature(type(begun.quantizer)).parameters
    for name, value in new.items():
        if name != "kind" and value != old.get(name, arguments[name].default):
            found[f"quantizer.{name}"] = value
    return found


def _shape(vqgan: VQGAN) -> dict[str, Any]:
    attention = sorted(set(vqgan.level_heights) & set(vqgan.config["attention_resolutions"]))
    return {name: vqgan.config[name] for name in SHAPE} | {"attention_resolutions": attention}


def _kind(label_maps: bool) -> str:
    return "label maps" if label_maps else "pictures"


def finetuned_adversary(saved: SavedModel, adversary: Adversary | None) -> None:
    """Gives the adversary the discriminator the saved model was trained with, if there is one."""
    if adversary is None:
        return
    found = saved.parts.get("discriminator")
    if found is None:
        log.info("the model to fine-tune has no discriminator: it begins anew")
    elif found.config != adversary.discriminator.config:
        chosen = adversary.discriminator.config
        log.warning(
            "the model to fine-tune has a discriminator of another shape, so it begins anew; to go "
            "on with it add %s",
            " ".join(
                f"adversary.discriminator.{name}={str(value).lower()}"
                for name, value in found.config.items()
                if value != chosen.get(name)
            ),
        )
    else:
        adversary.discriminator.load_state_dict(found.state)
