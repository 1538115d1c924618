"""CompVis/taming-transformers, second stage: `Net2NetTransformer` with the stages it contains."""

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

__all__ = ["PUBLISHED", "convert"]

FIRST_STAGE = "first_stage_model."
CONDITION_STAGE = "cond_stage_model."
UNCONDITIONAL = "__is_unconditional__"
IS_FIRST_STAGE = "__is_first_stage__"
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
LABELS = {  # the same autoencoder for one-hot label maps
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
    "sflckr_transformer": _published(MEDIUM, F16, {"target": "VQModel", "params": LABELS}),
}


class Condition(NamedTuple):
    """A condition of the other program, as ours."""

    conditioning: Conditioning
    ids: range  # its first prefix ids in their table of embeddings, which codes share
    stage: SavedModel | None = None  # the autoencoder of a condition that is an image
    notes: Sequence[str] = ()


def convert(content: Any, config: Mapping[str, Any], num_classes: int | None = None) -> Imported:
    """Converts a checkpoint of `Net2NetTransformer` to a generator with the stages it contains.

    There, conditions and codes are ids of one embedding table; here each have a table of their own,
    and the conditions' has one row more for "no condition". That row is zeros and, as without
    condition dropout it was never trained, cannot be asked for.

    A vocabulary larger than the codebook is cut to the codes: CompVis' program could draw an id
    that is no code and fail; here only codes have a probability.

    Args:
        content: the checkpoint: a dictionary with `state_dict`.
        config: their project.yaml, its `model`, or that one's `params`.
        num_classes: number of classes of a class-conditional model. Their configuration names it
            for a `Labelator` only; otherwise it is the vocabulary.
    """
    weights = ForeignWeights.find(content, "state_dict")
    model, params = model_and_params(config)
    if target_of(model) not in ("", "Net2NetTransformer"):
        raise UserError(
            f"the config is of {target_of(model)}, and this source imports Net2NetTransformer."
        )
    arguments = _transformer_arguments(params["transformer_config"])
    _drop_order(params, weights)
    first = _import_stage("first stage", params["first_stage_config"], weights, FIRST_STAGE)
    condition = _condition(params, arguments["vocab_size"], first, weights, num_classes)
    gpt = _gpt(arguments, first.model.config["quantizer"]["codebook_size"], condition)
    _drop_masks(weights, arguments)
    transformer, notes = _transformer(weights, gpt, arguments["vocab_size"], condition.ids)
    parts = {"transformer": transformer, "tokenizer": first.model}
    if condition.stage is not None:
        parts["condition_tokenizer"] = condition.stage
    saved = {
        "grid_size": list(_grid_size(first.model)),
        "conditioning": condition.conditioning.config(),
    }
    notes = [*weights.finish(), *notes, *first.notes, *condition.notes]
    return Imported(SavedModel("generator", saved, parts=parts), notes)


def _transformer_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the GPT, with its own defaults."""
    arguments = config["params"]
    unknown = sorted(set(arguments) - set(TRANSFORMER_DEFAULTS) - {"vocab_size", "block_size"})
    if unknown:  # a mistyped n_head would change what the weights mean, and not their shapes
        raise UserError(f"their transformer has no arguments {printable_names(unknown)}.")
    return {**TRANSFORMER_DEFAULTS, **arguments}


def _import_stage(name: str, config: Any, weights: ForeignWeights, prefix: str) -> Imported:
    """Imports an autoencoder within the checkpoint of a transformer."""
    try:
        stage = compvis_vqgan.convert({"state_dict": weights.hand_over(prefix)}, config)
    except UserError as error:
        raise UserError(f"the {name}: {error}") from error
    return Imported(stage.model, [f"{name}: {note}" for note in stage.notes])


def _grid_size(stage: SavedModel) -> tuple[int, int]:
    """Returns (height, width) of a stage's code grid at the resolution of its training."""
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
    """Converts the condition that `cond_stage_config` describes, and takes its weights."""
    config = params["cond_stage_config"]
    target = target_of(config)
    settings = config.get("params", {}) if isinstance(config, Mapping) else {}
    is_class = target == "Labelator" or (
        target == "DummyCondStage" and settings.get("conditional_key") == "class_label"
    )
    if num_classes is not None and not is_class:
        raise UserError("num_classes is a setting for class-conditional models, and this is none.")
    if config == UNCONDITIONAL or params.get("unconditional", False) or target == "SOSProvider":
        start = settings.get("sos_token", params.get("sos_token", 0))
        return Condition(Unconditional(), range(start, start + 1))
    if is_class:
        stated = settings.get("n_classes", vocab_size)
        if num_classes is not None and num_classes > stated:
            raise UserError(f"num_classes is {num_classes}, and the model has at most {stated}.")
        note = (
            f"the config does not say how many classes there are: all {vocab_size} ids can be "
            "asked for; num_classes=… says it"
        )
        notes = [] if "n_classes" in settings or num_classes is not None else [note]
        number = num_classes or stated
        return Condition(ClassLabel(number), range(number), notes=notes)
    if config != IS_FIRST_STAGE and target not in TARGETS:
        raise UserError(
            f"the config's cond_stage_config is {printable_name(target or str(config))}, a kind of "
            "condition that this program does not have: there are classes, images with a VQ model "
            "of their own, and none."
        )
    if params.get("downsample_cond_size", -1) != -1:
        raise UserError(
            "downsample_cond_size of the config makes the condition's images smaller before they "
            "are encoded, which this program does not do."
        )
    if config == IS_FIRST_STAGE:  # its weights are in the file once more
        weights.drop(CONDITION_STAGE, "the first stage again")
        model = first.model
        stage = Imported(
            SavedModel(model.kind, model.config, model.state), ["condition stage: the first stage"]
        )
    else:
        stage = _import_stage("condition stage", config, weights, CONDITION_STAGE)
    num_codes = stage.model.config["quantizer"]["codebook_size"]
    conditioning = ImageCondition(num_codes, _grid_size(stage.model))
    return Condition(conditioning, range(num_codes), stage.model, stage.notes)


def _gpt(arguments: Mapping[str, Any], codebook_size: int, condition: Condition) -> GPT:
    """Returns the GPT's shape, without memory for its weights."""
    vocab_size, unmasked = arguments["vocab_size"], arguments["n_unmasked"]
    prefix_length = condition.conditioning.prefix_length
    if max(codebook_size, condition.ids.stop) > vocab_size:
        raise UserError(
            f"the config's transformer has a vocabulary of {vocab_size}, its first stage "
            f"{codebook_size} codes, and its condition ids up to {condition.ids.stop - 1}: they do "
            "not belong together."
        )
    if unmasked not in (0, prefix_length):
        raise UserError(
            f"n_unmasked of the config is {unmasked} and the condition's length {prefix_length}: "
            "this program has bidirectional attention among all ids of the condition, or none."
        )
    with torch.device("meta"):
        return GPT(
            GPTConfig(
                codebook_size=codebook_size,
                num_prefix_ids=condition.conditioning.num_prefix_ids,
                prefix_length=prefix_length,
                bidirectional_prefix=unmasked > 0,
                context_length=arguments["block_size"],
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
    """Returns the GPT with its weights, and notes on what was cut off."""
    num_codes, width = gpt.token_embedding.weight.shape
    table = weights.take("transformer.tok_emb.weight", (vocab_size, width))
    head = weights.take("transformer.head.weight", (vocab_size, width))
    conditions = table[condition_ids.start : condition_ids.stop]
    no_condition = table.new_zeros(gpt.config.num_prefix_ids - len(condition_ids), width)
    made = {
        "prefix_embedding.weight": torch.cat([conditions, no_condition]),
        "token_embedding.weight": table[:num_codes],
        "head.weight": head[:num_codes],
    }
    names = {**NAMES, **block_names(gpt, "transformer.blocks", LAYERS)}
    notes = []
    if num_codes < vocab_size:
        notes.append(
            f"dropped rows {num_codes} to {vocab_size - 1} of transformer.head.weight: ids that "
            "are no code"
        )
    unused = vocab_size - len(set(range(num_codes)) | set(condition_ids))
    if unused:
        notes.append(
            f"dropped {unused} rows of transformer.tok_emb.weight: ids that are neither a code nor "
            "a condition"
        )
    return weights.fill(gpt, names, made), notes


def _drop_order(params: Mapping[str, Any], weights: ForeignWeights) -> None:
    """Drops a permuter that keeps codes row by row, as they come here; refuses another."""
    order = weights.peek("permuter.forward_shuffle_idx")
    target = target_of(params.get("permuter_config"))
    if (order is None and target not in ("", "Identity")) or (
        order is not None and not torch.equal(order, torch.arange(len(order)))
    ):
        raise UserError(
            f"it was trained on codes in the order of the permuter {printable_name(target)}; this "
            "program's order is row by row, and such a model cannot be imported."
        )
    weights.drop("permuter.", "codes are in their order")


def _drop_masks(weights: ForeignWeights, arguments: Mapping[str, Any]) -> None:
    """Drops the causal masks, one a layer in the file, after comparing them with ours."""
    size, unmasked = arguments["block_size"], arguments["n_unmasked"]
    own = torch.ones(size, size, dtype=torch.bool).tril()
    own[:unmasked, :unmasked] = True
    for name in weights.names("transformer.blocks."):
        mask = weights.peek(name)
        if not name.endswith(".attn.mask") or mask is None or mask.is_meta:
            continue
        if mask.shape[-2:] != own.shape or not (mask == own).all():
            raise UserError(
                f"{name} is not the causal mask of block_size {size} with n_unmasked {unmasked}. "
                "Give the config the checkpoint was trained with."
            )
    what = "the causal mask, which is computed"
    weights.drop("transformer.blocks.", what, ending=".attn.mask")
