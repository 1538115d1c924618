"""LlamaGen's class-conditional transformer (Sun et al. 2024, §2.2), the generator of its tokens."""

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

# of their `ModelArgs`
DEFAULTS: dict[str, Any] = {
    "dim": 4096, "n_layer": 32, "n_head": 32, "n_kv_head": None, "multiple_of": 256,
    "ffn_dim_multiplier": None, "rope_base": 10000, "norm_eps": 1e-5, "token_dropout_p": 0.1,
    "attn_dropout_p": 0.0, "resid_dropout_p": 0.1, "ffn_dropout_p": 0.1, "num_classes": 1000,
    "class_dropout_prob": 0.1, "model_type": "c2i", "vocab_size": 16384, "cls_token_num": 1,
    "block_size": 256,
}  # fmt: skip
# arguments without effect on a trained model, and arguments of their scripts
NOT_SHAPE = {"initializer_range", "drop_path_rate", "max_batch_size", "max_seq_len"}
OF_SCRIPTS = {"gpt_model", "gpt_type", "image_size", "downsample_size"}
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
    for suffix, block_size in (("", 256), ("-384", 576))  # images of 256 and of 384 pixels
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

    Their block is RMSNorm, attention with 2-D rotary positions, RMSNorm, SwiGLU, without biases;
    the class token's queries and keys are multiplied by 0, its row in their table of rotations, so
    that every token's score for it is 0. The last row of the class embedding is "no class".

    The weights do not depend on the grid, so nothing in the file tells 16 × 16 codes from 24 × 24:
    it is the square of `block_size` codes, or of `image_size` / `downsample_size`, by default of
    256 and 16.

    Args:
        content: the checkpoint: a dictionary with `model`, `module` or `state_dict`, or weights.
        config: arguments of their `ModelArgs`, or of their scripts with `gpt_model`, a size.
        tokenizer: directory of the imported tokenizer; without one there are tokens, not images.
    """
    weights = ForeignWeights.find(content, "model", "module", "state_dict")
    if weights.names("cls_embedding.cap_proj."):
        raise UserError(
            "it is a text-conditional model (t2i): it reads features of a language model, which "
            "this program does not have. The class-conditional ones (c2i) can be imported."
        )
    arguments = _arguments(config)
    side = math.isqrt(arguments["block_size"])
    conditioning = ClassLabel(arguments["num_classes"], dropout=arguments["class_dropout_prob"])
    gpt = _gpt(arguments, conditioning.num_prefix_ids, side)
    parts = {"transformer": _transformer(weights, gpt, arguments)}
    weights.drop("freqs_cis", "the rotary positions, which are computed")
    notes = [*weights.finish(), f"the grid is {side} × {side}, by block_size {side * side}"]
    notes += note_ignored(config, {*DEFAULTS, *NOT_SHAPE, *OF_SCRIPTS})
    if tokenizer is None:
        notes.append("no tokenizer: it draws tokens; for images give tokenizer=DIR")
    else:
        parts["tokenizer"] = _tokenizer(tokenizer, gpt.config.codebook_size)
    saved = {"grid_size": [side, side], "conditioning": conditioning.config()}
    return Imported(SavedModel("generator", saved, parts=parts), notes)


def _arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the arguments by their defaults, and checks that we have such a model."""
    size = config.get("gpt_model")
    if size is not None and size not in SIZES:
        raise UserError(f"gpt_model {size} is unknown; known: {', '.join(SIZES)}.")
    arguments = {**DEFAULTS, **PUBLISHED.get(str(size), {})}
    if "image_size" in config or "downsample_size" in config:
        side = config.get("image_size", 256) // config.get("downsample_size", 16)
        arguments["block_size"] = side**2
    arguments |= config
    for name in ("rope_base", "norm_eps", "cls_token_num"):
        if arguments[name] != DEFAULTS[name]:
            raise UserError(
                f"{name} is {arguments[name]!r}, and here it is always {DEFAULTS[name]}: such a "
                "model cannot be imported."
            )
    if math.isqrt(arguments["block_size"]) ** 2 != arguments["block_size"]:
        raise UserError(f"block_size is {arguments['block_size']}, which is no square grid.")
    return arguments


def _gpt(arguments: Mapping[str, Any], num_prefix_ids: int, side: int) -> GPT:
    """Returns the GPT's shape, without memory for its weights."""
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
    """Returns the GPT with its weights."""
    has_no_class = arguments["class_dropout_prob"] > 0  # only then is there a row for it
    num_rows, width = arguments["num_classes"] + has_no_class, arguments["dim"]
    classes = weights.take("cls_embedding.embedding_table.weight", (num_rows, width))
    zeros = classes.new_zeros(gpt.config.num_prefix_ids - num_rows, width)
    made = {"prefix_embedding.weight": torch.cat([classes, zeros])}
    return weights.fill(gpt, {**NAMES, **block_names(gpt, "layers", LAYERS)}, made)


def _tokenizer(path: str | Path, vocab_size: int) -> SavedModel:
    saved = VQGAN.load_saved(path)
    codebook_size = saved.config["quantizer"].get("codebook_size")
    if codebook_size != vocab_size:
        raise UserError(
            f"the tokenizer in {path} has {codebook_size} codes and the transformer {vocab_size}: "
            "they are not of the same model."
        )
    return saved
