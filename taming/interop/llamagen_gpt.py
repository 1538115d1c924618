"""LlamaGen's class-conditional transformer (Sun et al. 2024, §2.2)."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from taming.conditioning import ClassLabel
from taming.interop.layouts import block_names
from taming.interop.weights import ForeignWeights, Imported, note_ignored
from taming.runtime.errors import UserError
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN
from taming.transformer import GPT, GPTConfig

__all__ = ["PUBLISHED", "convert"]

DEFAULTS: dict[str, Any] = {  # of their `ModelArgs`
    "dim": 4096, "n_layer": 32, "n_head": 32, "n_kv_head": None, "multiple_of": 256,
    "ffn_dim_multiplier": None, "rope_base": 10000, "norm_eps": 1e-5, "token_dropout_p": 0.1,
    "attn_dropout_p": 0.0, "resid_dropout_p": 0.1, "ffn_dropout_p": 0.1, "num_classes": 1000,
    "class_dropout_prob": 0.1, "model_type": "c2i", "vocab_size": 16384, "cls_token_num": 1,
    "block_size": 256,
}  # fmt: skip
FIXED = ("rope_base", "norm_eps", "cls_token_num")  # only their defaults are supported
# arguments without effect on a trained model, and arguments of their scripts
OTHER_ARGUMENTS = {"initializer_range", "drop_path_rate", "max_batch_size", "max_seq_len",
    "gpt_model", "gpt_type", "image_size", "downsample_size"}  # fmt: skip
SIZES = {  # n_layer, n_head, dim
    "GPT-B": (12, 12, 768),
    "GPT-L": (24, 16, 1024),
    "GPT-XL": (36, 20, 1280),
    "GPT-XXL": (48, 24, 1536),
    "GPT-XXXL": (48, 40, 2560),
    "GPT-1B": (22, 32, 2048),
    "GPT-3B": (24, 32, 3200),
    "GPT-7B": (32, 32, 4096),
}
PUBLISHED: dict[str, dict[str, Any]] = {
    f"{name}{suffix}": {"n_layer": layers, "n_head": heads, "dim": dim, "block_size": block_size}
    for suffix, block_size in (("", 256), ("-384", 576))  # resolutions 256 and 384
    for name, (layers, heads, dim) in SIZES.items()
}
NAMES = {
    "token_embedding.weight": "tok_embeddings.weight",
    "norm.weight": "norm.weight",
    "head.weight": "output.weight",
}
LAYERS = {  # of a block
    "attention_norm": ["attention_norm"],
    "attention.query_key_value": ["attention.wqkv"],
    "attention.output": ["attention.wo"],
    "feed_forward_norm": ["ffn_norm"],
    "feed_forward.gate_expand": ["feed_forward.w1", "feed_forward.w3"],
    "feed_forward.contract": ["feed_forward.w2"],
}


def convert(
    content: Any, config: Mapping[str, Any], tokenizer: str | Path | None = None
) -> Imported:
    """Converts a checkpoint of LlamaGen's class-conditional GPT to a generator.

    Their block is RMSNorm, attention with 2-D rotary positions, RMSNorm and SwiGLU, without biases.
    Their table of rotations multiplies the class token's queries and keys by 0, so every token's
    attention score for it is 0. The last row of the class embedding is "no class".

    The weights do not depend on the grid, so the file cannot tell 16 × 16 codes from 24 × 24. The
    config gives the grid, as `block_size` or as `image_size` / `downsample_size`. The defaults are
    256 and 16.

    Args:
        content: the checkpoint, a dictionary with `model`, `module` or `state_dict`, or weights.
        config: arguments of their `ModelArgs`, or of their scripts with `gpt_model`, a size.
        tokenizer: directory of the imported tokenizer. Without it, the generator gives tokens only.
    """
    weights = ForeignWeights.find(content, "model", "module", "state_dict")
    if weights.names("cls_embedding.cap_proj."):
        raise UserError(
            "the model is text-conditional (t2i) and needs features of a language model. Only "
            "class-conditional models (c2i) can be imported."
        )
    arguments = _model_arguments(config)
    side = math.isqrt(arguments["block_size"])
    conditioning = ClassLabel(arguments["num_classes"], dropout=arguments["class_dropout_prob"])
    gpt = _gpt(arguments, conditioning.num_prefix_ids, side)
    parts = {"transformer": _transformer(weights, gpt, arguments)}
    weights.drop("freqs_cis", "the rotary positions, which this program computes")
    notes = [*weights.finish(), f"the grid is {side} × {side} because block_size is {side * side}"]
    notes += note_ignored(config, {*DEFAULTS, *OTHER_ARGUMENTS})
    if tokenizer is None:
        notes.append("the generator gives tokens only; give tokenizer=DIR for images")
    else:
        parts["tokenizer"] = _tokenizer(tokenizer, gpt.config.codebook_size)
    generator_config = {"grid_size": [side, side], "conditioning": conditioning.config()}
    return Imported(SavedModel("generator", generator_config, parts=parts), notes)


def _model_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of their model, completed by its defaults."""
    size = config.get("gpt_model")
    if size is not None and size not in SIZES:
        raise UserError(f"gpt_model={size} is unknown. Choose one of {', '.join(SIZES)}.")
    arguments = {**DEFAULTS, **PUBLISHED.get(str(size), {})}
    if "image_size" in config or "downsample_size" in config:
        side = config.get("image_size", 256) // config.get("downsample_size", 16)
        arguments["block_size"] = side**2
    arguments |= config
    for name in FIXED:
        if arguments[name] != DEFAULTS[name]:
            raise UserError(
                f"{name}={arguments[name]!r} is not supported; it must be {DEFAULTS[name]}."
            )
    if math.isqrt(arguments["block_size"]) ** 2 != arguments["block_size"]:
        raise UserError(f"block_size={arguments['block_size']} is not a square grid.")
    return arguments


def _gpt(arguments: Mapping[str, Any], num_prefix_ids: int, side: int) -> GPT:
    """Returns the GPT on the meta device."""
    hidden = int(2 * 4 * arguments["dim"] / 3)
    if arguments["ffn_dim_multiplier"] is not None:
        hidden = int(arguments["ffn_dim_multiplier"] * hidden)
    multiple = arguments["multiple_of"]
    with torch.device("meta"):
        return GPT(
            GPTConfig(
                codebook_size=arguments["vocab_size"],
                num_prefix_ids=num_prefix_ids,
                context_length=1 + side * side,
                num_layers=arguments["n_layer"],
                num_heads=arguments["n_head"],
                embed_dim=arguments["dim"],
                positions="rotary_2d",
                grid_size=(side, side),
                zero_prefix_rotation=True,
                norm="rms_norm",
                feed_forward="swiglu",
                feed_forward_dim=-(-hidden // multiple) * multiple,
                bias=False,
                dropout=arguments["resid_dropout_p"],
                attention_dropout=arguments["attn_dropout_p"],
                embedding_dropout=arguments["token_dropout_p"],
            )
        )


def _transformer(weights: ForeignWeights, gpt: GPT, arguments: Mapping[str, Any]) -> SavedModel:
    has_no_class_row = arguments["class_dropout_prob"] > 0
    num_rows, width = arguments["num_classes"] + has_no_class_row, arguments["dim"]
    classes = weights.take("cls_embedding.embedding_table.weight", (num_rows, width))
    zeros = classes.new_zeros(gpt.config.num_prefix_ids - num_rows, width)
    computed = {"prefix_embedding.weight": torch.cat([classes, zeros])}
    return weights.fill(gpt, {**NAMES, **block_names(gpt, "layers", LAYERS)}, computed)


def _tokenizer(path: str | Path, vocab_size: int) -> SavedModel:
    saved_model = VQGAN.load_saved(path)
    codebook_size = saved_model.config["quantizer"].get("codebook_size")
    if codebook_size != vocab_size:
        raise UserError(
            f"the tokenizer in {path} has {codebook_size} codes, but the transformer has "
            f"{vocab_size}. Give the tokenizer that the transformer was trained with."
        )
    return saved_model
