"""The shape of a transformer."""

from typing import Annotated, Literal

from annotated_types import Ge, Lt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from taming.transformer.orders import FixedOrder

__all__ = ["GPTConfig"]

Count = Annotated[int, Ge(1)]
Probability = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class GPTConfig:
    """Everything about a `GPT` except its weights, as its config.json stores it.

    Raises:
        ValueError: from pydantic, if a value has the wrong type or is out of range.
    """

    codebook_size: int  # number of image tokens, and of logits
    num_prefix_ids: int  # number of prefix ids
    context_length: int  # longest input: prefix and tokens together
    num_layers: Count  # transformer blocks
    num_heads: Count  # attention heads in each block
    embed_dim: Count  # width d
    # sinusoidal, learned: by position in the sequence; sinusoidal_2d, rotary_2d: by row and column
    positions: Literal["sinusoidal", "learned", "sinusoidal_2d", "rotary_2d"] = "sinusoidal"
    # the order of the tokens; any: each image may have its own, because each input of the model
    # says which cell it is and which cell to predict next, see `AnyOrderPositions`
    order: FixedOrder | Literal["any"] = "raster"
    # (height, width) of the code grid, for *_2d and for orders other than raster
    grid_size: tuple[int, int] | None = None
    prefix_length: int = 1  # ids in front of the tokens
    # (height, width) of a prefix that is an image: its cells get the coordinates of the image's
    # cells under them; other prefixes have no row and column
    prefix_grid_size: tuple[int, int] | None = None
    # rotary_2d: multiply queries and keys without row and column by 0, as LlamaGen does, not by 1
    zero_prefix_rotation: bool = False
    bidirectional_prefix: bool = False  # the prefix attends to itself in both directions
    num_context_ids: int = 0  # number of context ids; 0: no cross-attention
    context_grid_size: tuple[int, int] | None = None  # like prefix_grid_size, for the context
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    feed_forward: Literal["gelu", "swiglu"] = "gelu"
    feed_forward_dim: Count | None = None  # see `FeedForward`, `GatedFeedForward`
    bias: bool = True  # of the blocks' linear maps and LayerNorms
    qk_norm: bool = False  # normalise queries and keys, see `MultiHeadAttention`
    dropout: Probability = 0.0  # of what the blocks add
    attention_dropout: Probability = 0.0  # of attention weights; slow on CPUs
    embedding_dropout: Probability = 0.0
    tie_head: bool = False  # the head uses the token embedding's matrix (Press and Wolf 2017)
