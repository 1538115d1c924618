"""CompVis/taming-transformers, second stage: `Net2NetTransformer` with the stages it contains."""

from collections.abc import Mapping
from typing import Any

import torch

from taming.conditioning import Conditioning
from taming.errors import UserError
from taming.importers.compvis_condition import (
    codebook_size_of,
    find_condition,
    grid_size_of,
    import_stage,
)
from taming.importers.compvis_vqgan import COMPVIS_VQGAN, model_and_params, target_of
from taming.importers.interface import Imported, Source, find_weights
from taming.importers.transformer import build_gpt, generator, integer
from taming.importers.weights import ForeignWeights
from taming.serialization.foreign_names import shown, shown_names
from taming.transformer import GPT

__all__ = ["COMPVIS_TRANSFORMER"]

FIRST_STAGE = "first_stage_model."
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

    first = import_stage(
        weights.hand_over(FIRST_STAGE),
        params.get("first_stage_config"),
        f"the first stage in {where}",
    )
    condition = find_condition(params, arguments, first, weights, where, num_classes)
    gpt = _gpt(arguments, codebook_size_of(first.model), condition.conditioning)
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
    saved = generator(gpt, state, condition.conditioning, grid_size_of(first.model), parts)
    return Imported(saved, notes)


COMPVIS_TRANSFORMER = Source(convert, PUBLISHED, ("num_classes",))


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
    unknown = sorted(set(arguments) - set(TRANSFORMER_DEFAULTS) - {"vocab_size", "block_size"})
    if unknown:  # a mistyped n_head would change what the weights mean, and not their shapes
        raise UserError(f"their transformer has no arguments {shown_names(unknown)}.")
    arguments = {**TRANSFORMER_DEFAULTS, **arguments}
    for name, least in (("vocab_size", 1), ("block_size", 1), ("n_unmasked", 0)):
        integer(name, arguments[name], least)
    return arguments


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
        fits = mask.numel() == size * size  # else one of the stated size may be too large to make
        if fits and own is None:
            own = torch.ones(size, size, dtype=torch.bool).tril()
            own[:unmasked, :unmasked] = True
        if not fits or own is None or not torch.equal(mask.reshape(size, size) != 0, own):
            raise UserError(
                f"{where} does not fit its config: {name} is not the causal mask of block_size "
                f"{size} with n_unmasked {unmasked}. Give the config the checkpoint was trained "
                "with."
            )
    reason = "the causal mask, which is computed"
    weights.drop("transformer.blocks.", reason, ending=".attn.mask")
