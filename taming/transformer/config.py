"""The shape of a transformer, declared once."""

from typing import Annotated, Literal

from annotated_types import Ge, Lt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

__all__ = ["GPTConfig"]

Count = Annotated[int, Ge(1)]
Probability = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class GPTConfig:
    """Everything that determines a `GPT` except its weights; the model's config.json holds it.

    Raises:
        ValueError: pydantic's, if a value is not of its type or out of its range.
    """

    codebook_size: int  # number of different image tokens, and of logits
    num_prefix_ids: int  # number of different prefix ids
    context_length: int  # longest input, prefix and tokens together
    num_layers: Count  # transformer blocks
    num_heads: Count  # attention heads in each block
    embed_dim: Count  # width d
    # sinusoidal, learned: by position in the sequence; sinusoidal_2d, rotary_2d: by row and column
    positions: Literal["sinusoidal", "learned", "sinusoidal_2d", "rotary_2d"] = "sinusoidal"
    # (height, width) of the code grid, for rows and columns
    grid_size: tuple[int, int] | None = None
    prefix_length: int = 1  # ids in front of the tokens
    # of a prefix that is an image: its rows and columns line up with those of the tokens; other
    # prefixes have no row and no column
    prefix_grid_size: tuple[int, int] | None = None
    # rotary_2d: multiply queries and keys without row and column by 0 as LlamaGen does, not by 1
    zero_prefix_rotation: bool = False
    bidirectional_prefix: bool = False  # the prefix attends to itself in both directions
    num_context_ids: int = 0  # number of different context ids; 0: no cross-attention
    context_grid_size: tuple[int, int] | None = None  # lined up like a prefix that is an image
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    feed_forward: Literal["gelu", "swiglu"] = "gelu"
    feed_forward_dim: Count | None = None  # width inside; None: 4 d, for swiglu 8/3 d
    bias: bool = True  # of the blocks' linear maps and LayerNorms
    qk_norm: bool = False  # normalise queries and keys, see `MultiHeadAttention`
    dropout: Probability = 0.0  # of what the blocks add
    attention_dropout: Probability = 0.0  # of attention weights; slow on CPUs
    embedding_dropout: Probability = 0.0
    tie_head: bool = False  # the head's matrix is the token embedding's (Press and Wolf 2017)
