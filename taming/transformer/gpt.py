"""GPT: a decoder-only transformer that predicts each codebook token from those before it.

Esser et al. 2021, section 3.2: p(s) = ∏ᵢ p(sᵢ | s₀ … sᵢ₋₁, c), the condition c being the prefix, or
a context that every layer attends to.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from taming.attention import KeyValueCache, Rotation, prefix_causal_mask
from taming.errors import UserError
from taming.linear import Linear
from taming.positions import (
    LearnedPositions,
    RotaryPositions2D,
    SinusoidalPositions,
    SinusoidalPositions2D,
    grid_coordinates,
)
from taming.serialization import PretrainedModel
from taming.transformer.block import NORMS, TransformerBlock

__all__ = ["GPT"]

SINUSOID_SCALE = 0.05
POSITIONS = ("sinusoidal", "learned", "sinusoidal_2d", "rotary_2d")
Contexts = Sequence[tuple[Tensor, Tensor] | None]  # keys and values of the context, by layer


SIZES = (
    "codebook_size",
    "num_prefix_ids",
    "context_length",
    "num_layers",
    "num_heads",
    "embed_dim",
    "feed_forward_dim",
)


class GPT(PretrainedModel):
    """The transformer of stage 2.

    The input is a prefix, which stands for the condition, and then image tokens; each has an
    embedding table of its own, so that a class label is never mistaken for a code. A position in
    the whole sequence, prefix first, is called its place.

    Args:
        codebook_size: number of different image tokens, and of logits.
        num_prefix_ids: number of different prefix ids.
        context_length: longest input, prefix and tokens together.
        num_layers: transformer blocks.
        num_heads: attention heads in each.
        embed_dim: width d.
        positions: `"sinusoidal"` or `"learned"` by place; `"sinusoidal_2d"` or `"rotary_2d"` by row
            and column, as `grid_size` gives them.
        grid_size: (height, width) of the code grid, for positions in two dimensions.
        prefix_length: ids in front of the tokens.
        prefix_grid_size: of a prefix that is an image: in two dimensions its rows and columns line
            up with those of the tokens. Other prefixes have no row and no column.
        zero_prefix_rotation: with `"rotary_2d"`, multiply queries and keys that have no row and
            column by 0, as LlamaGen does, in place of 1.
        bidirectional_prefix: the prefix attends to itself in both directions.
        num_context_ids: number of different context ids; 0 is a model without cross-attention.
        context_grid_size: (height, width) of the context, lined up like a prefix that is an image.
        norm: `"layer_norm"` or `"rms_norm"`.
        feed_forward: `"gelu"` or `"swiglu"`.
        feed_forward_dim: width inside the feed-forward networks; None for their usual one.
        bias: whether the blocks' linear maps and LayerNorms have biases.
        qk_norm: normalise queries and keys, see `MultiHeadAttention`.
        dropout: in the blocks, on what they add.
        attention_dropout: in the blocks, on attention weights.
        embedding_dropout: on the embeddings.
        tie_head: the head's matrix is that of the token embedding (Press and Wolf 2017).

    Attributes:
        checkpointing: compute activations again in the backward pass: less memory, more time.

    Raises:
        UserError: if arguments do not fit each other, or a size is less than 1.
    """

    kind = "gpt"
    part = "transformer"

    def __init__(
        self,
        *,
        codebook_size: int,
        num_prefix_ids: int,
        context_length: int,
        num_layers: int,
        num_heads: int,
        embed_dim: int,
        positions: str = "sinusoidal",
        grid_size: Sequence[int] | None = None,
        prefix_length: int = 1,
        prefix_grid_size: Sequence[int] | None = None,
        zero_prefix_rotation: bool = False,
        bidirectional_prefix: bool = False,
        num_context_ids: int = 0,
        context_grid_size: Sequence[int] | None = None,
        norm: str = "layer_norm",
        feed_forward: str = "gelu",
        feed_forward_dim: int | None = None,
        bias: bool = True,
        qk_norm: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        tie_head: bool = False,
    ) -> None:
        super().__init__()
        block: dict[str, Any] = {
            "norm": norm,
            "feed_forward": feed_forward,
            "feed_forward_dim": feed_forward_dim,
            "bias": bias,
            "qk_norm": qk_norm,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
        }
        self.config: dict[str, Any] = {
            "codebook_size": codebook_size,
            "num_prefix_ids": num_prefix_ids,
            "context_length": context_length,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "embed_dim": embed_dim,
            "positions": positions,
            "grid_size": None if grid_size is None else list(grid_size),
            "prefix_length": prefix_length,
            "prefix_grid_size": None if prefix_grid_size is None else list(prefix_grid_size),
            "zero_prefix_rotation": zero_prefix_rotation,
            "bidirectional_prefix": bidirectional_prefix,
            "num_context_ids": num_context_ids,
            "context_grid_size": None if context_grid_size is None else list(context_grid_size),
            **block,
            "embedding_dropout": embedding_dropout,
            "tie_head": tie_head,
        }
        for name in SIZES:
            size = self.config[name]
            if size is not None and size < 1:
                raise UserError(f"{name} is {size}: a transformer needs at least 1.")
        self.codebook_size = codebook_size
        self.num_prefix_ids = num_prefix_ids
        self.num_context_ids = num_context_ids
        self.context_length = context_length
        self.bidirectional_prefix = bidirectional_prefix
        self.checkpointing = False

        self.prefix_embedding = nn.Embedding(num_prefix_ids, embed_dim)
        self.token_embedding = nn.Embedding(codebook_size, embed_dim)
        self.positions = self._build_positions()
        self.context_positions: SinusoidalPositions2D | RotaryPositions2D
        if num_context_ids > 0:
            self.context_embedding = nn.Embedding(num_context_ids, embed_dim)
            self.context_positions = self._build_context_positions()
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(embed_dim, num_heads, context=num_context_ids > 0, **block)
            for _ in range(num_layers)
        )
        self.norm = NORMS[norm](embed_dim, bias)
        self.head = Linear(embed_dim, codebook_size, bias=False)
        if tie_head:
            self.head.weight = self.token_embedding.weight
        self.init_weights()

    def _build_positions(
        self,
    ) -> SinusoidalPositions | LearnedPositions | SinusoidalPositions2D | RotaryPositions2D:
        config, dim = self.config, self.config["embed_dim"]
        kind = config["positions"]
        if kind not in POSITIONS:
            raise UserError(f"positions is one of {', '.join(POSITIONS)}, not {kind!r}.")
        if kind == "sinusoidal":
            return SinusoidalPositions(dim, self.context_length, scale=SINUSOID_SCALE)
        if kind == "learned":
            return LearnedPositions(self.context_length, dim)
        grid_size, prefix_grid_size = config["grid_size"], config["prefix_grid_size"]
        if grid_size is None:
            raise UserError(f"positions={kind} needs the grid_size of the tokens.")
        coordinates = grid_coordinates(tuple(grid_size))  # (n 2)
        prefix = coordinates.new_full((config["prefix_length"], 2), math.nan)  # (p 2)
        if prefix_grid_size is not None:
            prefix = grid_coordinates(prefix_grid_size, reference=grid_size)
            if len(prefix) != config["prefix_length"]:
                raise UserError(
                    f"a prefix of {config['prefix_length']} ids does not fill a grid of "
                    f"{prefix_grid_size[0]} × {prefix_grid_size[1]}."
                )
        coordinates = torch.cat([prefix, coordinates])  # (p+n 2)
        if self.context_length > len(coordinates):
            raise UserError(
                f"a context of {self.context_length} is longer than prefix and grid together, "
                f"{len(coordinates)}, and positions={kind} knows no others."
            )
        if kind == "sinusoidal_2d":
            return SinusoidalPositions2D(dim, coordinates, scale=SINUSOID_SCALE)
        return RotaryPositions2D(
            dim // config["num_heads"],
            coordinates,
            zero_without_place=config["zero_prefix_rotation"],
        )

    def _build_context_positions(self) -> SinusoidalPositions2D | RotaryPositions2D:
        config = self.config
        if config["context_grid_size"] is None:
            raise UserError("a model with context ids needs the context_grid_size.")
        reference = config["grid_size"] or config["context_grid_size"]
        coordinates = grid_coordinates(config["context_grid_size"], reference=reference)  # (c 2)
        if config["positions"] == "rotary_2d":
            return RotaryPositions2D(config["embed_dim"] // config["num_heads"], coordinates)
        return SinusoidalPositions2D(config["embed_dim"], coordinates, scale=SINUSOID_SCALE)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialises all weights anew.

        | weights                                      | values                                  |
        |----------------------------------------------|-----------------------------------------|
        | linear maps, embeddings, learned positions   | N(0, 0.02)                              |
        | maps that end a branch: attention.output,    | N(0, 0.02 / √(branches)), so that the   |
        | context_attention.output,                    | sum of all layers' branches, 2 a layer, |
        | feed_forward.contract                        | with a context 3, keeps its scale       |
        | biases                                       | 0                                       |
        | LayerNorm, RMSNorm                           | scale 1, shift 0                        |

        The second number of N is the standard deviation. Sinusoids, with a root mean square of
        0.71, would drown embeddings of 0.02, so `SINUSOID_SCALE` makes them smaller, 0.035.
        Making the embeddings larger instead, by √d as Vaswani et al. 2017 do before their post-norm
        blocks, learns more slowly here: beside a large sum, what the pre-norm blocks add is small.
        """
        num_branches = (3 if self.num_context_ids else 2) * len(self.blocks)
        branch_ends = ("attention.output", "feed_forward.contract")
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Linear):
                ends_branch = name.endswith(branch_ends)
                std = 0.02 / math.sqrt(num_branches) if ends_branch else 0.02
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()

    def forward(
        self,
        prefix: Tensor,
        tokens: Tensor,
        cache: KeyValueCache | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Logits for what follows each position of the input.

        Args:
            prefix: `(b p)` int64 prefix ids.
            tokens: `(b n)` int64 image tokens; either may have length 0.
            cache: of earlier inputs, which these follow and to which they are appended.
            context: `(b c)` int64 context ids, for a model that has them; with a cache only the
                first call reads it.

        Returns:
            `(b p+n codebook_size)`.

        Raises:
            ValueError: if all inputs together are longer than the context length.
        """
        return self.head(self.features(prefix, tokens, cache, context))

    def features(
        self,
        prefix: Tensor,
        tokens: Tensor,
        cache: KeyValueCache | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """What `forward` applies the head to, `(b p+n d)`; the same arguments."""
        offset = 0 if cache is None else cache.length
        num_prefix, length = prefix.shape[1], prefix.shape[1] + tokens.shape[1]
        if offset + length > self.context_length:
            raise ValueError(
                f"a sequence of {offset + length} (prefix and tokens) is longer than the context "
                f"length of this model, {self.context_length}: use fewer tokens or a model with a "
                "longer one."
            )
        embeddings = torch.cat(
            [self.prefix_embedding(prefix), self.token_embedding(tokens)], dim=1
        )  # (b p+n d)
        places = torch.arange(offset, offset + length, device=embeddings.device)
        mask = None
        if self.bidirectional_prefix and num_prefix > 1:
            mask = prefix_causal_mask(length, num_prefix, device=embeddings.device)
        return self._through_blocks(
            embeddings, places, self._contexts(context, cache), mask=mask, cache=cache
        )

    def step(self, tokens: Tensor, place: Tensor, cache: KeyValueCache) -> Tensor:
        """Logits for what follows one token, by the same operations whatever its place.

        That is what can be compiled once, and captured; `forward` with a cache computes the same.

        Args:
            tokens: `(b 1)` int64.
            place: `(1,)` int64.
            cache: filled by `forward` with all that is before `place`; its `span` must reach it.

        Returns:
            `(b codebook_size)`.
        """
        mask = torch.arange(cache.span, device=place.device) <= place  # (span)
        contexts = [layer.context for layer in cache.layers]
        x = self._through_blocks(
            self.token_embedding(tokens), place, contexts, mask=mask[None], cache=cache, place=place
        )
        return self.head(x[:, -1])

    def _through_blocks(
        self,
        embeddings: Tensor,
        places: Tensor,
        contexts: Contexts,
        *,
        mask: Tensor | None,
        cache: KeyValueCache | None,
        place: Tensor | None = None,
    ) -> Tensor:
        rotate: Rotation | None = None
        if isinstance(self.positions, RotaryPositions2D):
            rotate = partial(self.positions.rotate, places=places)
            x = embeddings
        else:
            x = self.positions(embeddings, places)
        x = self.embedding_dropout(x)
        for layer, block in enumerate(self.blocks):
            settings: dict[str, Any] = {
                "mask": mask,
                "cache": None if cache is None else cache.layers[layer],
                "place": place,
                "rotate": rotate,
            }
            if self.checkpointing and self.training:
                run = partial(block, **settings)
                x = checkpoint(run, x, contexts[layer], use_reentrant=False)
            else:
                x = block(x, contexts[layer], **settings)  # (b n d)
        return self.norm(x)

    def _contexts(self, context: Tensor | None, cache: KeyValueCache | None) -> Contexts:
        """Each layer's keys and values of the context; a cache remembers them."""
        if self.num_context_ids == 0:
            return [None] * len(self.blocks)
        if cache is not None and cache.length > 0:
            return [layer.context for layer in cache.layers]
        if context is None:
            raise ValueError("this model attends to a context, and there is none.")
        embeddings = self.context_embedding(context)  # (b c d)
        places = torch.arange(context.shape[1], device=context.device)
        rotate: Rotation | None = None
        if isinstance(self.context_positions, RotaryPositions2D):
            rotate = partial(self.context_positions.rotate, places=places)
        else:
            embeddings = self.context_positions(embeddings, places)
        contexts = []
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            contexts.append(block.context_keys_and_values(embeddings, rotate))
        if cache is not None:
            for layer, keys_and_values in zip(cache.layers, contexts, strict=True):
                layer.keep_context(*keys_and_values)
        return contexts

    def token_logits(self, prefix: Tensor, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        """Logits aligned with the tokens: `logits[:, i]` predicts `tokens[:, i]`.

        The last token is only predicted and never an input, so prefix and tokens may be one longer
        than the context length.

        Args:
            prefix: `(b p)`, p at least 1: its last id predicts the first token.
            tokens: `(b n)`.
            context: `(b c)`, for a model that has one.

        Returns:
            `(b n codebook_size)`.
        """
        num_prefix, num_tokens = prefix.shape[1], tokens.shape[1]
        if num_prefix == 0:
            raise ValueError("the first token has nothing to be predicted from: give a prefix.")
        features = self.features(prefix, tokens[:, :-1], context=context)  # (b p+n-1 d)
        return self.head(features[:, num_prefix - 1 : num_prefix - 1 + num_tokens])
