"""The shape of a transformer, declared once."""

from dataclasses import dataclass
from typing import Literal, get_args

from taming.errors import UserError

__all__ = ["GPTConfig"]

Positions = Literal["sinusoidal", "learned", "sinusoidal_2d", "rotary_2d"]
Norm = Literal["layer_norm", "rms_norm"]
Activation = Literal["gelu", "swiglu"]


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Everything that determines a `GPT` except its weights; the model's config.json holds it.

    Raises:
        UserError: if a size is less than 1 or a choice is unknown.
    """

    codebook_size: int  # number of different image tokens, and of logits
    num_prefix_ids: int  # number of different prefix ids
    context_length: int  # longest input, prefix and tokens together
    num_layers: int  # transformer blocks
    num_heads: int  # attention heads in each block
    embed_dim: int  # width d
    # sinusoidal, learned: by position in the sequence; sinusoidal_2d, rotary_2d: by row and column
    positions: Positions = "sinusoidal"
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
    norm: Norm = "layer_norm"
    feed_forward: Activation = "gelu"
    feed_forward_dim: int | None = None  # width inside; None: 4 d, for swiglu 8/3 d
    bias: bool = True  # of the blocks' linear maps and LayerNorms
    qk_norm: bool = False  # normalise queries and keys, see `MultiHeadAttention`
    dropout: float = 0.0  # of what the blocks add
    attention_dropout: float = 0.0  # of attention weights; slow on CPUs, whose fast kernel has none
    embedding_dropout: float = 0.0
    tie_head: bool = False  # the head's matrix is the token embedding's (Press and Wolf 2017)

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "embed_dim", "feed_forward_dim"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise UserError(f"{name} is {size}: a transformer needs at least 1.")
        for name, choices in (
            ("positions", Positions),
            ("norm", Norm),
            ("feed_forward", Activation),
        ):
            if getattr(self, name) not in get_args(choices):
                known = ", ".join(get_args(choices))
                raise UserError(f"{name} is one of {known}, not {getattr(self, name)!r}.")
        for name in ("grid_size", "prefix_grid_size", "context_grid_size"):
            size = getattr(self, name)
            if size is not None:  # a list, where it comes from YAML or JSON
                object.__setattr__(self, name, tuple(size))
