"""CompVis/taming-transformers, second stage: `Net2NetTransformer` with the stages it contains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from taming.conditioning import ClassLabel, Conditioning, ImageCondition, Unconditional
from taming.errors import UserError
from taming.importers.compvis_vqgan import COMPVIS_VQGAN, model_and_params, target_of
from taming.importers.interface import Imported, Source, find_weights
from taming.importers.transformer import build_gpt, generator
from taming.importers.weights import ForeignWeights
from taming.serialization import SavedModel
from taming.serialization.foreign_names import shown, shown_names
from taming.transformer import GPT

__all__ = ["COMPVIS_TRANSFORMER"]

FIRST_STAGE = "first_stage_model."
CONDITION_STAGE = "cond_stage_model."
UNCONDITIONAL = "__is_unconditional__"
IS_FIRST_STAGE = "__is_first_stage__"
# our layers in a block
BLOCK_NAMES = {
    "attention_norm": "ln1",
    "attention.query": "attn.query",
    "attention.key": "attn.key",
    "attention.value": "attn.value",
    "attention.output": "attn.proj",
    "feed_forward_norm": "ln2",
    "feed_forward.expand": "mlp.0",
    "feed_forward.contract": "mlp.2",
}
TRANSFORMER_DEFAULTS: dict[str, Any] = {
    "n_layer": 12,
    "n_head": 8,
    "n_embd": 256,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "n_unmasked": 0,
}


def _published(
    size: Mapping[str, Any], first_stage: str, condition: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "target": "Net2NetTransformer",
        "params": {
            "transformer_config": {"target": "GPT", "params": dict(size)},
            "first_stage_config": COMPVIS_VQGAN.published[first_stage],
            "cond_stage_config": condition,
        },
    }


def _labels(num_classes: int) -> dict[str, Any]:
    """The f16-1024 autoencoder of one-hot label maps."""
    params: Mapping[str, Any] = COMPVIS_VQGAN.published["f16-1024"]["params"]
    shape = {**params["ddconfig"], "in_channels": num_classes, "out_ch": num_classes}
    return {
        "target": "VQModel",
        "params": {**params, "ddconfig": shape, "image_key": "segmentation"},
    }


MEDIUM = {"vocab_size": 1024, "block_size": 512, "n_layer": 24, "n_head": 16, "n_embd": 1024}
LARGE = {"vocab_size": 16384, "block_size": 256, "n_layer": 48, "n_head": 24, "n_embd": 1536}
PUBLISHED = {
    "cin_transformer": _published(
        LARGE, "f16-16384", {"target": "Labelator", "params": {"n_classes": 1000}}
    ),
    "drin_transformer": _published(MEDIUM, "f16-1024", COMPVIS_VQGAN.published["f16-1024"]),
    "sflckr_transformer": _published(MEDIUM, "f16-1024", _labels(182)),
}


def convert(
    content: Any, config: Mapping[str, Any], where: str, num_classes: int | None = None
) -> Imported:
    """A checkpoint of `Net2NetTransformer` to a generator: both stages, and that of the condition.

    There, conditions and codes are ids of one embedding table; here each have a table of their own,
    and the conditions' has one row more for "no condition". That row is zeros and, as without
    condition dropout it was never trained, cannot be asked for.

    A vocabulary larger than the codebook is cut to the codes: theirs could draw an id that is no
    code and fail, and here the probabilities are among the codes.

    Args:
        content: the checkpoint: a dictionary with `state_dict`.
        config: their project.yaml, its `model`, or that one's `params`.
        where: the file, for messages.
        num_classes: number of classes of a class-conditional model. Their configuration names it
            for a `Labelator` only; otherwise it is the vocabulary.

    Raises:
        UserError: if the checkpoint does not fit the configuration, or is of something else.
    """
    tensors, entries = find_weights(content, ("state_dict",), where)
    weights = ForeignWeights(tensors, where)
    model, params = model_and_params(config)
    if target_of(model) not in ("", "Net2NetTransformer"):
        raise UserError(
            f"the config is of {target_of(model)}, and this source imports Net2NetTransformer."
        )
    arguments = _transformer_arguments(params)
    _check_order(params, weights, where)

    first = _stage(weights.hand_over(FIRST_STAGE), params.get("first_stage_config"),
                   f"the first stage in {where}")  # fmt: skip
    condition = _condition(params, arguments["vocab_size"], first, weights, where, num_classes)
    gpt = _gpt(arguments, _codebook_size(first.model), condition.conditioning)
    _drop_masks(weights, arguments, where)
    state, notes = _state(weights, gpt, arguments, condition.ids)
    weights.finish()

    parts = {"tokenizer": first.model}
    notes = [*weights.notes, *notes, *(f"first stage: {note}" for note in first.notes)]
    if condition.stage is not None:
        parts["condition_tokenizer"] = condition.stage.model
        notes += [f"condition stage: {note}" for note in condition.stage.notes]
    notes += condition.notes
    if entries:
        notes.append(f"left out beside the weights: {shown_names(entries)}")
    saved = generator(gpt, state, condition.conditioning, _grid_size(first.model), parts)
    return Imported(saved, notes)


COMPVIS_TRANSFORMER = Source(convert, PUBLISHED, ("num_classes",))


@dataclass(frozen=True)
class _Condition:
    """What can be asked for, the ids it has in their table, and its autoencoder if it has one."""

    conditioning: Conditioning
    ids: range
    stage: Imported | None = None
    notes: tuple[str, ...] = ()


def _stage(weights: dict[str, torch.Tensor], config: Any, where: str) -> Imported:
    if not isinstance(config, Mapping):
        raise UserError(f"the config describes no autoencoder for {where}: it is {config!r}.")
    if not weights:
        raise UserError(
            f"{where} has no weights: give the checkpoint of the transformer, which contains it."
        )
    return COMPVIS_VQGAN.convert({"state_dict": weights}, config, where)


def _codebook_size(stage: SavedModel) -> int:
    return int(stage.config["quantizer"]["codebook_size"])


def _grid_size(stage: SavedModel) -> tuple[int, int]:
    """Of the resolution it was trained at: the block size may be larger than this needs."""
    height, width = stage.config["resolution"]
    factor = 2 ** (len(stage.config["channel_multipliers"]) - 1)
    return height // factor, width // factor


# --- the condition ------------------------------------------------------------------------------


def _condition(
    params: Mapping[str, Any],
    vocab_size: int,
    first: Imported,
    weights: ForeignWeights,
    where: str,
    num_classes: int | None,
) -> _Condition:
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
        start = _integer("sos_token", settings.get("sos_token", params.get("sos_token", 0)))
        condition = _Condition(Unconditional(), range(start, start + 1))
    elif is_class:
        condition = _class_label(settings, vocab_size, num_classes)
    elif config == IS_FIRST_STAGE or target in ("VQModel", "VQNoDiscModel", "VQSegmentationModel",
                                                "GumbelVQ"):  # fmt: skip
        condition = _image(params, config, first, weights, where)
    else:
        raise UserError(
            f"the config's cond_stage_config is {shown(target or str(config))}, a kind of "
            "condition that this program does not have: there are classes, images with a VQ model "
            "of their own, and none."
        )
    wanted = condition.ids
    if not 0 <= wanted.start < wanted.stop <= vocab_size:
        raise UserError(
            f"the condition's ids are {wanted.start} to {wanted.stop - 1}, and the vocabulary of "
            f"the config's transformer has {vocab_size}."
        )
    unmasked = _transformer_arguments(params)["n_unmasked"]
    if unmasked not in (0, condition.conditioning.prefix_length):
        raise UserError(
            f"n_unmasked of the config is {unmasked} and the condition's length "
            f"{condition.conditioning.prefix_length}: this program has bidirectional attention "
            "among all ids of the condition, or none."
        )
    return condition


def _class_label(
    settings: Mapping[str, Any], vocab_size: int, num_classes: int | None
) -> _Condition:
    note: tuple[str, ...] = ()
    stated = _integer("n_classes", settings.get("n_classes", vocab_size))
    if num_classes is None and "n_classes" not in settings:
        note = (
            f"the config does not say how many classes there are: all {vocab_size} ids can be "
            "asked for; num_classes=… says it",
        )
    num_classes = stated if num_classes is None else _integer("num_classes", num_classes)
    if num_classes > stated:
        raise UserError(f"num_classes is {num_classes}, and the model has at most {stated}.")
    return _Condition(ClassLabel(num_classes), range(num_classes), notes=note)


def _image(
    params: Mapping[str, Any], config: Any, first: Imported, weights: ForeignWeights, where: str
) -> _Condition:
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
        stage = _stage(
            weights.hand_over(CONDITION_STAGE), config, f"the condition stage in {where}"
        )
    num_codes = _codebook_size(stage.model)
    conditioning = ImageCondition(num_codes, _grid_size(stage.model))
    return _Condition(conditioning, range(num_codes), stage)


# --- the transformer ----------------------------------------------------------------------------


def _transformer_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of their GPT, with their defaults."""
    config = params.get("transformer_config")
    arguments = config.get("params") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(arguments, Mapping):
        raise UserError(
            "the config has no `transformer_config` with `params`: give the project.yaml beside "
            "the checkpoint, its `model` or that one's `params`."
        )
    if target_of(config) not in ("", "GPT"):
        raise UserError(f"the config's transformer is {target_of(config)}, and not their GPT.")
    absent = [name for name in ("vocab_size", "block_size") if name not in arguments]
    if absent:
        raise UserError(f"the config lacks {', '.join(absent)} of the transformer.")
    arguments = {**TRANSFORMER_DEFAULTS, **arguments}
    for name in ("vocab_size", "block_size", "n_unmasked"):
        _integer(name, arguments[name])
    return arguments


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise UserError(f"the config describes no model: {name} is {value!r}, and no integer.")
    return value


def _gpt(arguments: Mapping[str, Any], codebook_size: int, conditioning: Conditioning) -> GPT:
    if codebook_size > arguments["vocab_size"]:
        raise UserError(
            f"the config's first stage has {codebook_size} codes and its transformer a vocabulary "
            f"of {arguments['vocab_size']}: they do not belong together."
        )
    return build_gpt(
        {
            "codebook_size": codebook_size,
            "num_prefix_ids": conditioning.num_prefix_ids,
            "prefix_length": conditioning.prefix_length,
            "bidirectional_prefix": arguments["n_unmasked"] > 0,
            "context_length": arguments["block_size"],
            "num_layers": arguments["n_layer"],
            "num_heads": arguments["n_head"],
            "embed_dim": arguments["n_embd"],
            "positions": "learned",
            "dropout": arguments["resid_pdrop"],
            "attention_dropout": arguments["attn_pdrop"],
            "embedding_dropout": arguments["embd_pdrop"],
        }
    )


def _state(
    weights: ForeignWeights, gpt: GPT, arguments: Mapping[str, Any], condition_ids: range
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Our GPT's weights, and notes on what was cut off."""
    shape = (arguments["vocab_size"], gpt.token_embedding.embedding_dim)
    table = weights.take("transformer.tok_emb.weight", shape)
    head = weights.take("transformer.head.weight", shape)
    conditions = table[condition_ids.start : condition_ids.stop]
    no_condition = table.new_zeros(gpt.num_prefix_ids - len(condition_ids), shape[1])
    made = {
        "prefix_embedding.weight": torch.cat([conditions, no_condition]),
        "token_embedding.weight": table[: gpt.codebook_size],
        "head.weight": head[: gpt.codebook_size],
    }
    names = {"positions.embedding.weight": "transformer.pos_emb"}
    for name in gpt.state_dict():
        layer, _, leaf = name.rpartition(".")
        if layer.startswith("blocks."):
            _, index, inner = layer.split(".", 2)
            names[name] = f"transformer.blocks.{index}.{BLOCK_NAMES[inner]}.{leaf}"
        elif layer == "norm":
            names[name] = f"transformer.ln_f.{leaf}"
    notes = []
    codes, vocab = gpt.codebook_size, shape[0]
    if codes < vocab:
        notes.append(
            f"dropped rows {codes} to {vocab - 1} of transformer.head.weight: ids that are no code"
        )
    unused = vocab - len(set(range(codes)) | set(condition_ids))
    if unused:
        notes.append(
            f"dropped {unused} rows of transformer.tok_emb.weight: ids that are neither a code nor "
            "a condition"
        )
    return weights.fill(gpt, names, made), notes


def _check_order(params: Mapping[str, Any], weights: ForeignWeights, where: str) -> None:
    """Codes come row by row here; their permuters put them into other orders.

    Raises:
        UserError: if there is one that does.
    """
    order = weights.peek("permuter.forward_shuffle_idx")
    config = params.get("permuter_config")
    target = target_of(config) if isinstance(config, Mapping) else "Identity"
    if order is not None:
        identity = order.ndim == 1 and order.tolist() == list(range(len(order)))
    else:
        identity = target in ("", "Identity")
    if not identity:
        raise UserError(
            f"{where} was trained on codes in the order of the permuter {shown(target)}; this "
            "program's order is row by row, and such a model cannot be imported."
        )
    weights.drop("permuter.", "codes are in their order")


def _drop_masks(weights: ForeignWeights, arguments: Mapping[str, Any], where: str) -> None:
    """Drops the causal masks, of which the file holds one a layer, if they are what ours will be.

    Raises:
        UserError: if they are not.
    """
    size, unmasked = arguments["block_size"], arguments["n_unmasked"]
    own: torch.Tensor | None = None
    for name in weights.names("transformer.blocks."):
        mask = weights.peek(name)
        if not name.endswith(".attn.mask") or mask is None or mask.is_meta:
            continue
        if own is None:
            own = torch.ones(size, size, dtype=torch.bool).tril()
            own[:unmasked, :unmasked] = True
        if mask.numel() != size * size or not torch.equal(mask.reshape(size, size) != 0, own):
            raise UserError(
                f"{where} does not fit its config: {name} is not the causal mask of block_size "
                f"{size} with n_unmasked {unmasked}. Give the config the checkpoint was trained "
                "with."
            )
    reason = "the causal mask, which is computed"
    weights.drop("transformer.blocks.", reason, ending=".attn.mask")
