"""What a `Net2NetTransformer` of CompVis/taming-transformers can be asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from taming.conditioning import ClassLabel, Conditioning, ImageCondition, Unconditional
from taming.errors import UserError
from taming.importers.compvis_vqgan import COMPVIS_VQGAN, target_of
from taming.importers.interface import Imported
from taming.importers.transformer import integer
from taming.importers.weights import ForeignWeights
from taming.serialization import SavedModel
from taming.serialization.foreign_names import shown

__all__ = ["Condition", "codebook_size_of", "find_condition", "grid_size_of", "import_stage"]

CONDITION_STAGE = "cond_stage_model."
UNCONDITIONAL = "__is_unconditional__"
IS_FIRST_STAGE = "__is_first_stage__"
AUTOENCODERS = ("VQModel", "VQNoDiscModel", "VQSegmentationModel", "GumbelVQ")


@dataclass(frozen=True)
class Condition:
    """A condition of theirs.

    Attributes:
        conditioning: ours.
        ids: what its first prefix ids are in their table of embeddings, which codes share.
        stage: the autoencoder of a condition that is an image.
        notes: lines for the user.
    """

    conditioning: Conditioning
    ids: range
    stage: Imported | None = None
    notes: tuple[str, ...] = ()


def find_condition(
    params: Mapping[str, Any],
    transformer: Mapping[str, Any],
    first: Imported,
    weights: ForeignWeights,
    where: str,
    num_classes: int | None,
) -> Condition:
    """The condition that `cond_stage_config` describes; takes its weights.

    Args:
        params: of their `Net2NetTransformer`.
        transformer: arguments of their GPT, with its defaults.
        first: the first stage.
        weights: those of the checkpoint.
        where: the file, for messages.
        num_classes: number of classes, as the user gave it.

    Raises:
        UserError: if it is of a kind that this program does not have, or does not fit the weights
            or the transformer.
    """
    config = params.get("cond_stage_config")
    target = target_of(config) if isinstance(config, Mapping) else ""
    settings = config.get("params") if isinstance(config, Mapping) else None
    settings = settings if isinstance(settings, Mapping) else {}
    is_class = target == "Labelator" or (
        target == "DummyCondStage" and settings.get("conditional_key") == "class_label"
    )
    if num_classes is not None and not is_class:
        raise UserError("num_classes is a setting for class-conditional models, and this is none.")
    if config == UNCONDITIONAL or params.get("unconditional", False) or target == "SOSProvider":
        start = integer("sos_token", settings.get("sos_token", params.get("sos_token", 0)), 0)
        condition = Condition(Unconditional(), range(start, start + 1))
    elif is_class:
        condition = _class_label(settings, transformer["vocab_size"], num_classes)
    elif config == IS_FIRST_STAGE or target in AUTOENCODERS:
        condition = _image(params, config, first, weights, where)
    else:
        raise UserError(
            f"the config's cond_stage_config is {shown(target or str(config))}, a kind of "
            "condition that this program does not have: there are classes, images with a VQ model "
            "of their own, and none."
        )
    _check(condition, transformer)
    return condition


def import_stage(weights: dict[str, torch.Tensor], config: Any, where: str) -> Imported:
    """An autoencoder within the checkpoint of a transformer.

    Args:
        weights: its weights, by the names of an autoencoder's own checkpoint.
        config: its target and params.
        where: which it is, for messages.

    Raises:
        UserError: if they do not fit each other, or are missing.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"the config describes no autoencoder for {where}: it is {config!r}.")
    if not weights:
        raise UserError(
            f"{where} has no weights: give the checkpoint of the transformer, which contains it."
        )
    return COMPVIS_VQGAN.convert({"state_dict": weights}, config, where)


def codebook_size_of(stage: SavedModel) -> int:
    """Number of codes of an imported autoencoder."""
    return int(stage.config["quantizer"]["codebook_size"])


def grid_size_of(stage: SavedModel) -> tuple[int, int]:
    """(height, width) of the grid of an imported autoencoder, at the resolution of its training."""
    height, width = stage.config["resolution"]
    factor = 2 ** (len(stage.config["channel_multipliers"]) - 1)
    return height // factor, width // factor


def _class_label(
    settings: Mapping[str, Any], vocab_size: int, num_classes: int | None
) -> Condition:
    stated = integer("n_classes", settings.get("n_classes", vocab_size), 1)
    if num_classes is not None:
        if integer("num_classes", num_classes, 1) > stated:
            raise UserError(f"num_classes is {num_classes}, and the model has at most {stated}.")
        return Condition(ClassLabel(num_classes), range(num_classes))
    note = (
        f"the config does not say how many classes there are: all {vocab_size} ids can be asked "
        "for; num_classes=… says it"
    )
    notes = () if "n_classes" in settings else (note,)
    return Condition(ClassLabel(stated), range(stated), notes=notes)


def _image(
    params: Mapping[str, Any], config: Any, first: Imported, weights: ForeignWeights, where: str
) -> Condition:
    if params.get("downsample_cond_size", -1) != -1:
        raise UserError(
            "downsample_cond_size of the config makes the condition's images smaller before they "
            "are encoded, which this program does not do."
        )
    if config == IS_FIRST_STAGE:  # its weights are in the file once more
        weights.drop(CONDITION_STAGE, "the first stage again")
        model = first.model
        stage = Imported(SavedModel(model.kind, model.config, model.state), ["the first stage"])
    else:
        name = f"the condition stage in {where}"
        stage = import_stage(weights.hand_over(CONDITION_STAGE), config, name)
    num_codes = codebook_size_of(stage.model)
    conditioning = ImageCondition(num_codes, grid_size_of(stage.model))
    return Condition(conditioning, range(num_codes), stage)


def _check(condition: Condition, transformer: Mapping[str, Any]) -> None:
    ids, vocab_size = condition.ids, transformer["vocab_size"]
    if ids.stop > vocab_size:
        raise UserError(
            f"the condition's ids are {ids.start} to {ids.stop - 1}, and the vocabulary of the "
            f"config's transformer has {vocab_size}."
        )
    unmasked, prefix_length = transformer["n_unmasked"], condition.conditioning.prefix_length
    if unmasked not in (0, prefix_length):
        raise UserError(
            f"n_unmasked of the config is {unmasked} and the condition's length {prefix_length}: "
            "this program has bidirectional attention among all ids of the condition, or none."
        )
