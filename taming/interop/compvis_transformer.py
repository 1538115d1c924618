"""CompVis/taming-transformers, stage 2: `Net2NetTransformer` with the autoencoders it contains."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from taming.conditioning import ClassLabel, Conditioning, ImageCondition, Unconditional
from taming.interop import compvis_vqgan
from taming.interop.compvis_vqgan import TARGETS, model_and_params, target_of
from taming.interop.layouts import block_names
from taming.interop.weights import ForeignWeights, Imported
from taming.runtime.errors import UserError
from taming.serialization import SavedModel
from taming.serialization.foreign import printable_name, printable_names
from taming.transformer import GPT, GPTConfig
from taming.transformer.orders import FixedOrder, order_cells

__all__ = ["PUBLISHED", "convert"]

FIRST_STAGE, CONDITION_STAGE = "first_stage_model.", "cond_stage_model."
UNCONDITIONAL, IS_FIRST_STAGE = "__is_unconditional__", "__is_first_stage__"
NAMES = {
    "positions.embedding.weight": "transformer.pos_emb",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
}
LAYERS = {  # of a block
    "attention_norm": ["ln1"],
    "attention.query_key_value": ["attn.query", "attn.key", "attn.value"],
    "attention.output": ["attn.proj"],
    "feed_forward_norm": ["ln2"],
    "feed_forward.expand": ["mlp.0"],
    "feed_forward.contract": ["mlp.2"],
}
PERMUTERS: dict[str, FixedOrder] = {
    "Identity": "raster",
    "SpiralOut": "spiral_out",
    "SpiralIn": "spiral_in",
    "ZCurve": "z_curve",
    "Subsample": "subsample",
    "AlternateParsing": "alternate_scan",
    "Random": "fixed_random",
}
TRANSFORMER_DEFAULTS: dict[str, Any] = {"n_layer": 12, "n_head": 8, "n_embd": 256,
    "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "n_unmasked": 0}  # fmt: skip


def _published(size: Mapping[str, Any], first_stage: Any, condition: Any) -> dict[str, Any]:
    return {
        "params": {
            "transformer_config": {"params": size},
            "first_stage_config": first_stage,
            "cond_stage_config": condition,
        }
    }


F16 = compvis_vqgan.PUBLISHED["f16-1024"]
LABEL_MAPS = {
    **F16["params"],
    "ddconfig": {**F16["params"]["ddconfig"], "in_channels": 182, "out_ch": 182},
    "image_key": "segmentation",
}
CLASSES = {"target": "Labelator", "params": {"n_classes": 1000}}
MEDIUM = {"vocab_size": 1024, "block_size": 512, "n_layer": 24, "n_head": 16, "n_embd": 1024}
LARGE = {"vocab_size": 16384, "block_size": 256, "n_layer": 48, "n_head": 24, "n_embd": 1536}
PUBLISHED = {
    "cin_transformer": _published(LARGE, compvis_vqgan.PUBLISHED["f16-16384"], CLASSES),
    "drin_transformer": _published(MEDIUM, F16, F16),
    "sflckr_transformer": _published(MEDIUM, F16, {"target": "VQModel", "params": LABEL_MAPS}),
}


class Condition(NamedTuple):
    """A condition of the other program.

    Attributes:
        conditioning: the same condition here.
        ids: rows of their embedding table that hold the condition's ids. Codes share the table.
        stage: the autoencoder of a condition image.
        notes: notes of the import.
    """

    conditioning: Conditioning
    ids: range
    stage: SavedModel | None = None
    notes: Sequence[str] = ()


def convert(content: Any, config: Mapping[str, Any], num_classes: int | None = None) -> Imported:
    """Converts a checkpoint of `Net2NetTransformer` to a generator with its autoencoders.

    There, conditions and codes share one embedding table. Here each has its own, and the table of
    conditions has an additional row for "no condition". That row is zero. It cannot be used because
    it was never trained.

    A vocabulary larger than the codebook is cut to the codes. Their program could sample an id that
    is not a code and fail; here only codes have a probability.

    Args:
        content: the checkpoint, a dictionary with `state_dict`.
        config: their project.yaml, its `model`, or the `params` of the model.
        num_classes: number of classes of a class-conditional model. Only a `Labelator` states it in
            the config; the default is the size of the vocabulary.
    """
    weights = ForeignWeights.find(content, "state_dict")
    model, params = model_and_params(config)
    if target_of(model) not in ("", "Net2NetTransformer"):
        raise UserError(
            f"the config describes {target_of(model)}, but this source imports Net2NetTransformer."
        )
    arguments = _transformer_arguments(params["transformer_config"])
    first = _import_stage("first stage", params["first_stage_config"], weights, FIRST_STAGE)
    condition = _condition(params, arguments["vocab_size"], first, weights, num_classes)
    grid_size = _grid_size(first.model)
    order = _take_order(params, weights, grid_size)
    gpt = _gpt(
        arguments, first.model.config["quantizer"]["codebook_size"], condition, order, grid_size
    )
    _drop_masks(weights, arguments)
    transformer, notes = _transformer(weights, gpt, arguments["vocab_size"], condition.ids)
    parts = {"transformer": transformer, "tokenizer": first.model}
    if condition.stage is not None:
        parts["condition_tokenizer"] = condition.stage
    generator_config = {
        "grid_size": list(grid_size),
        "conditioning": condition.conditioning.config(),
    }
    notes = [*weights.finish(), *notes, *first.notes, *condition.notes]
    return Imported(SavedModel("generator", generator_config, parts=parts), notes)


def _transformer_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of their GPT, completed by its defaults."""
    arguments = config["params"]
    unknown = sorted(set(arguments) - set(TRANSFORMER_DEFAULTS) - {"vocab_size", "block_size"})
    if unknown:  # a mistyped n_head changes the computation but not the shapes
        raise UserError(f"their transformer has no arguments {printable_names(unknown)}.")
    return {**TRANSFORMER_DEFAULTS, **arguments}


def _import_stage(name: str, config: Any, weights: ForeignWeights, prefix: str) -> Imported:
    """Imports an autoencoder inside the checkpoint."""
    try:
        stage = compvis_vqgan.convert({"state_dict": weights.split_off(prefix)}, config)
    except UserError as error:
        raise UserError(f"the {name}: {error}") from error
    return Imported(stage.model, [f"{name}: {note}" for note in stage.notes])


def _grid_size(stage: SavedModel) -> tuple[int, int]:
    """Returns the (height, width) of an autoencoder's code grid at its training resolution."""
    height, width = stage.config["resolution"]
    factor = 2 ** (len(stage.config["channel_multipliers"]) - 1)
    return height // factor, width // factor


def _condition(
    params: Mapping[str, Any],
    vocab_size: int,
    first: Imported,
    weights: ForeignWeights,
    num_classes: int | None,
) -> Condition:
    """Converts the condition in `cond_stage_config` and takes its weights."""
    config = params["cond_stage_config"]
    target = target_of(config)
    settings = config.get("params", {}) if isinstance(config, Mapping) else {}
    is_class = target == "Labelator" or (
        target == "DummyCondStage" and settings.get("conditional_key") == "class_label"
    )
    if is_class:
        return _class_condition(settings, vocab_size, num_classes)
    if num_classes is not None:
        raise UserError("num_classes is only for class-conditional models. Remove it.")
    if config == UNCONDITIONAL or params.get("unconditional", False) or target == "SOSProvider":
        start = settings.get("sos_token", params.get("sos_token", 0))
        return Condition(Unconditional(), range(start, start + 1))
    if config != IS_FIRST_STAGE and target not in TARGETS:
        raise UserError(
            f"cond_stage_config in the config is {printable_name(target or str(config))}, an "
            "unsupported condition. Supported are classes, images with a VQ model, and none."
        )
    if params.get("downsample_cond_size", -1) != -1:
        raise UserError(
            "downsample_cond_size in the config is not supported: it shrinks condition images "
            "before it encodes them."
        )
    if config == IS_FIRST_STAGE:  # the file holds its weights twice
        weights.drop(CONDITION_STAGE, "a copy of the first stage")
        model = first.model
        stage = Imported(
            SavedModel(model.kind, model.config, model.state), ["condition stage: the first stage"]
        )
    else:
        stage = _import_stage("condition stage", config, weights, CONDITION_STAGE)
    num_codes = stage.model.config["quantizer"]["codebook_size"]
    conditioning = ImageCondition(num_codes, _grid_size(stage.model))
    return Condition(conditioning, range(num_codes), stage.model, stage.notes)


def _class_condition(
    settings: Mapping[str, Any], vocab_size: int, num_classes: int | None
) -> Condition:
    limit = settings.get("n_classes", vocab_size)
    if num_classes is not None and num_classes > limit:
        raise UserError(f"num_classes={num_classes} is more than the model's {limit} classes.")
    notes = []
    if "n_classes" not in settings and num_classes is None:
        notes.append(
            f"the config does not state the number of classes, so all {vocab_size} ids are "
            "classes; set num_classes=…"
        )
    num_classes = num_classes or limit
    return Condition(ClassLabel(num_classes), range(num_classes), notes=notes)


def _gpt(
    arguments: Mapping[str, Any],
    codebook_size: int,
    condition: Condition,
    order: FixedOrder,
    grid_size: tuple[int, int],
) -> GPT:
    """Returns the GPT on the meta device."""
    vocab_size, num_unmasked = arguments["vocab_size"], arguments["n_unmasked"]
    prefix_length = condition.conditioning.prefix_length
    if max(codebook_size, condition.ids.stop) > vocab_size:
        raise UserError(
            f"the config has a vocabulary of {vocab_size}, but its first stage has {codebook_size} "
            f"codes and its condition ids up to {condition.ids.stop - 1}."
        )
    if num_unmasked not in (0, prefix_length):
        raise UserError(
            f"n_unmasked={num_unmasked} in the config is not supported: either all "
            f"{prefix_length} ids of the condition are unmasked, or no id is."
        )
    with torch.device("meta"):
        return GPT(
            GPTConfig(
                codebook_size=codebook_size,
                num_prefix_ids=condition.conditioning.num_prefix_ids,
                prefix_length=prefix_length,
                bidirectional_prefix=num_unmasked > 0,
                context_length=arguments["block_size"],
                order=order,
                grid_size=None if order == "raster" else grid_size,
                num_layers=arguments["n_layer"],
                num_heads=arguments["n_head"],
                embed_dim=arguments["n_embd"],
                positions="learned",
                dropout=arguments["resid_pdrop"],
                attention_dropout=arguments["attn_pdrop"],
                embedding_dropout=arguments["embd_pdrop"],
            )
        )


def _transformer(
    weights: ForeignWeights, gpt: GPT, vocab_size: int, condition_ids: range
) -> tuple[SavedModel, list[str]]:
    """Returns the GPT with its weights, and notes on the rows that were dropped."""
    num_codes, width = gpt.token_embedding.weight.shape
    table = weights.take("transformer.tok_emb.weight", (vocab_size, width))
    head = weights.take("transformer.head.weight", (vocab_size, width))
    conditions = table[condition_ids.start : condition_ids.stop]
    no_condition = table.new_zeros(gpt.config.num_prefix_ids - len(condition_ids), width)
    computed = {
        "prefix_embedding.weight": torch.cat([conditions, no_condition]),
        "token_embedding.weight": table[:num_codes],
        "head.weight": head[:num_codes],
    }
    notes = []
    if num_codes < vocab_size:
        rows = f"rows {num_codes} to {vocab_size - 1}"
        notes.append(f"dropped {rows} of transformer.head.weight: ids that are not codes")
    num_unused = vocab_size - len(set(range(num_codes)) | set(condition_ids))
    if num_unused:
        notes.append(
            f"dropped {num_unused} rows of transformer.tok_emb.weight: ids that are neither codes "
            "nor conditions"
        )
    names = {**NAMES, **block_names(gpt, "transformer.blocks", LAYERS)}
    return weights.fill(gpt, names, computed), notes


def _take_order(
    params: Mapping[str, Any], weights: ForeignWeights, grid_size: tuple[int, int]
) -> FixedOrder:
    """Returns the order of the permuter, and drops its tables, which must be equal to ours.

    The condition is not permuted, there as here.
    """
    permuter = target_of(params.get("permuter_config")) or "Identity"
    table = weights.peek("permuter.forward_shuffle_idx")
    if permuter == "Identity" and table is not None:  # a config without a permuter
        tables = {order: order_cells(order, grid_size) for order in PERMUTERS.values()}
        orders = [order for order, cells in tables.items() if torch.equal(table, cells)]
    else:
        orders = [PERMUTERS[permuter]] if permuter in PERMUTERS else []
    if not orders or (
        table is not None and not torch.equal(table, order_cells(orders[0], grid_size))
    ):
        raise UserError(
            f"the model generates codes in the order of the permuter {printable_name(permuter)}, "
            f"which is not supported for {grid_size[0]} × {grid_size[1]} codes. Supported are "
            f"{', '.join(PERMUTERS)}."
        )
    weights.drop("permuter.", f"the order is {orders[0]}")
    return orders[0]


def _drop_masks(weights: ForeignWeights, arguments: Mapping[str, Any]) -> None:
    """Drops each layer's attention mask if it matches the config."""
    size, num_unmasked = arguments["block_size"], arguments["n_unmasked"]
    expected = torch.ones(size, size, dtype=torch.bool).tril()
    expected[:num_unmasked, :num_unmasked] = True
    for name in weights.names("transformer.blocks."):
        mask = weights.peek(name)
        if not name.endswith(".attn.mask") or mask is None or mask.is_meta:
            continue
        if mask.shape[-2:] != expected.shape or not (mask == expected).all():
            raise UserError(
                f"{name} is not the causal mask of block_size {size} with n_unmasked "
                f"{num_unmasked}. Give the config that the checkpoint was trained with."
            )
    reason = "the causal mask, which this program computes"
    weights.drop("transformer.blocks.", reason, suffix=".attn.mask")
