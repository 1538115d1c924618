"""GPT: a decoder-only transformer that predicts each codebook token from the previous ones.

Esser et al. 2021, section 3.2: p(s) = ∏ᵢ p(sᵢ | s₀ … sᵢ₋₁, c). The condition c is a prefix of the
sequence, or a context that every layer attends to. The tokens come in a fixed order, or in a
model of any order, each image in its own.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from taming.attention import CacheView, Rotation, prefix_causal_mask
from taming.positions import (
    LearnedPositions,
    RotaryPositions2D,
    SinusoidalPositions,
    SinusoidalPositions2D,
    grid_coordinates,
)
from taming.serialization import PretrainedModel, SavedModel
from taming.transformer.block import TransformerBlock, build_norm
from taming.transformer.config import GPTConfig
from taming.transformer.loss import token_losses
from taming.transformer.orders import FixedOrder, order_cells, to_tokens
from taming.transformer.target_positions import TargetPositions

__all__ = ["GPT"]

SINUSOID_SCALE = 0.05
Positions = SinusoidalPositions | LearnedPositions | SinusoidalPositions2D | RotaryPositions2D
Rotations = tuple[Rotation | None, Rotation | None]  # of queries, of keys
Contexts = Sequence[tuple[Tensor, Tensor] | None]  # each layer's keys and values of the context


class GPT(PretrainedModel):
    """The transformer of stage 2.

    The input is a prefix of condition ids, then image tokens. The two have separate embedding
    tables, so that a class label is never mistaken for a code. Positions count the whole sequence,
    prefix first.

    Attributes:
        config: see `GPTConfig`.
        checkpointing: recompute activations in the backward pass: less memory, more time.

    Raises:
        UserError: if the width does not fit the number of heads.
    """

    kind = "gpt"
    part = "transformer"
    config: GPTConfig

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.prefix_embedding = nn.Embedding(config.num_prefix_ids, config.embed_dim)
        self.token_embedding = nn.Embedding(config.codebook_size, config.embed_dim)
        self.positions = build_positions(config)
        self.targets: TargetPositions | None = None
        if config.order == "any":
            assert config.grid_size is not None
            self.targets = TargetPositions(config.grid_size, config.embed_dim, scale=SINUSOID_SCALE)
        self.context_positions: SinusoidalPositions2D | RotaryPositions2D
        if config.num_context_ids > 0:
            self.context_embedding = nn.Embedding(config.num_context_ids, config.embed_dim)
            self.context_positions = build_context_positions(config)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.num_layers))
        self.norm = build_norm(config)
        self.head = nn.Linear(config.embed_dim, config.codebook_size, bias=False)
        if config.tie_head:
            self.head.weight = self.token_embedding.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialises all weights.

        | weights                                    | values                                    |
        |--------------------------------------------|-------------------------------------------|
        | linear maps, embeddings, learned positions | N(0, 0.02)                                |
        | attention.output, context_attention.output,| N(0, 0.02 / √branches)                    |
        | feed_forward.contract                      |                                           |
        | biases                                     | 0                                         |
        | LayerNorm, RMSNorm                         | scale 1, shift 0                          |

        The second number of N is the standard deviation. Each layer has two branches, with a
        context three. The division keeps the scale of the sum of all branches (Radford et al. 2019,
        GPT-2).

        Sinusoids have a root mean square of 0.71 and would drown embeddings of 0.02, so
        `SINUSOID_SCALE` reduces them to 0.035. Vaswani et al. 2017 enlarge the embeddings by √d
        instead. With pre-norm blocks that learns more slowly, because a branch then adds little to
        the large sum.
        """
        num_branches = (3 if self.config.num_context_ids else 2) * len(self.blocks)
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
        if self.targets is not None:
            self.targets.init_weights()

    def forward(self, prefix: Tensor, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        """Returns the logits `(b p+n codebook_size)` of what follows each token; see `features`."""
        return self.head(self.features(prefix, tokens, context))

    def features(
        self,
        prefix: Tensor | None,
        tokens: Tensor,
        context: Tensor | None = None,
        *,
        cells: Tensor | None = None,
        cache: CacheView | None = None,
    ) -> Tensor:
        """Returns the features before the head.

        Args:
            prefix: `(b p)` int64 prefix ids; None where the cache has their keys and values.
            tokens: `(b n)` int64 image tokens; n may be 0.
            context: `(b c)` int64 context ids, for a model that attends to a context; None where
                the cache has its keys and values.
            cells: for a model of any order, `(b n+k)` or `(1 n+k)` int64 numbers of cells: first
                the cells of the tokens, then the k cells to predict next, k at least 1. The last k
                features predict these, independently of each other. None: raster order.
            cache: the positions of prefix and tokens, and keys and values of earlier positions.
                None: the positions are 0, 1, 2, ….

        Returns:
            `(b p+n d)`; for k cells to predict `(b p+n+k-1 d)`.
        """
        num_prefix = 0 if prefix is None else prefix.shape[1]
        length = num_prefix + tokens.shape[1]
        assert length <= self.config.context_length, "longer than the context"
        mask = None if cache is None else cache.mask
        if self.config.bidirectional_prefix and num_prefix > 1:
            # the last id also says which cell to predict, which the others must not depend on
            num_both_ways = num_prefix if self.targets is None else num_prefix - 1
            mask = prefix_causal_mask(length, num_both_ways, device=tokens.device, mask=mask)
        x = self.token_embedding(tokens)  # (b n d)
        if prefix is not None:
            x = torch.cat([self.prefix_embedding(prefix), x], dim=1)  # (b p+n d)
        if self.targets is None:
            positions = torch.arange(length, device=x.device) if cache is None else cache.positions
            x, rotate = apply_positions(x, self.positions, positions)
            rotations: Rotations = rotate, rotate
        else:
            x, rotations = self._apply_cells(x, num_prefix, cells)
        x = self.embedding_dropout(x)
        contexts = self._contexts(context, cache)
        for layer, block in enumerate(self.blocks):
            update = None if cache is None else partial(cache.update, layer)
            run = partial(block, mask=mask, update_cache=update, rotations=rotations)
            if self.checkpointing and self.training:
                x = checkpoint(run, x, contexts[layer], use_reentrant=False)
            else:
                x = run(x, contexts[layer])  # (b p+n d)
        return self.norm(x)

    def _apply_cells(
        self, x: Tensor, num_prefix: int, cells: Tensor | None
    ) -> tuple[Tensor, Rotations]:
        """Adds to each input its own cell and the cell to predict, see `features`.

        The last input is repeated for each further cell to predict. With rotary positions, keys
        rotate by their own cell and queries by the cell to predict, so a score depends on the
        distance between the two.
        """
        assert self.targets is not None
        num_tokens = x.shape[1] - num_prefix
        if cells is None:
            cells = torch.arange(num_tokens + 1, device=x.device)[None]
        num_copies = cells.shape[1] - num_tokens - 1
        first = self.config.prefix_length  # position of cell 0
        own = first + cells[:, :num_tokens]  # (b n)
        targets = cells[:, 1:]  # (b n+k-1)
        if num_prefix:
            prefix = torch.arange(num_prefix, device=x.device).expand(len(cells), -1)  # (b p)
            own = torch.cat([prefix, own], dim=1)  # (b p+n)
            nothing = torch.full_like(prefix[:, 1:], self.targets.no_target)
            targets = torch.cat([nothing, cells], dim=1)  # (b p+n+k-1)
        if num_copies:
            x = torch.cat([x, x[:, -1:].expand(-1, num_copies, -1)], dim=1)  # (b p+n+k-1 d)
            own = torch.cat([own, own[:, -1:].expand(-1, num_copies)], dim=1)
        x, rotate_keys = apply_positions(x, self.positions, own)
        rotate_queries = rotate_keys
        if isinstance(self.positions, RotaryPositions2D):
            has_target = targets < self.targets.no_target
            rotate_queries = self.positions.rotation(torch.where(has_target, first + targets, own))
        return self.targets(x, targets), (rotate_queries, rotate_keys)

    def token_logits(
        self,
        prefix: Tensor,
        tokens: Tensor,
        context: Tensor | None = None,
        *,
        cells: Tensor | None = None,
    ) -> Tensor:
        """Returns logits aligned with the tokens: `logits[:, i]` predicts `tokens[:, i]`.

        The last token is only predicted and never an input. Prefix and tokens together may
        therefore exceed the context length by one.

        Args:
            prefix: `(b p)`, p at least 1: its last id predicts the first token.
            tokens: `(b n)`.
            context: `(b c)`, for a model that attends to a context.
            cells: for a model of any order, the cells of the tokens, `(b n)` or `(1 n)` int64;
                None: raster order.

        Returns:
            `(b n codebook_size)`.
        """
        return self.head(self._features_before(prefix, tokens, context, cells))

    def token_losses(
        self,
        prefix: Tensor,
        tokens: Tensor,
        context: Tensor | None = None,
        *,
        cells: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Returns −log p of each token in nats, `(b n)`, without storing all logits at once.

        Takes the arguments of `token_logits`, and `targets` `(b n)` to predict tokens
        other than the input.
        """
        features = self._features_before(prefix, tokens, context, cells)
        targets = tokens if targets is None else targets
        return token_losses(self.head, features, targets, self.config.codebook_size)

    def _features_before(
        self, prefix: Tensor, tokens: Tensor, context: Tensor | None, cells: Tensor | None
    ) -> Tensor:
        """Returns the features `(b n d)` that predict each token."""
        num_prefix = prefix.shape[1]
        assert num_prefix > 0, "the first token has nothing to be predicted from"
        features = self.features(prefix, tokens[:, :-1], context, cells=cells)  # (b p+n-1 d)
        return features[:, num_prefix - 1 : num_prefix - 1 + tokens.shape[1]]

    def _contexts(self, context: Tensor | None, cache: CacheView | None) -> Contexts:
        """Returns each layer's keys and values of the context, which a cache stores."""
        if self.config.num_context_ids == 0:
            return [None] * len(self.blocks)
        if context is None:
            assert cache is not None, "this model needs a context"
            return [cache.context(layer) for layer in range(len(self.blocks))]
        positions = torch.arange(context.shape[1], device=context.device)
        embeddings = self.context_embedding(context)  # (b c d)
        embeddings, rotate = apply_positions(embeddings, self.context_positions, positions)
        contexts = []
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, TransformerBlock) and block.context_attention is not None
            contexts.append(block.context_attention.keys_and_values(embeddings, rotate))
            if cache is not None:
                cache.write_context(layer, *contexts[-1])
        return contexts

    def to_saved(self) -> SavedModel:
        """Returns the model as plain data; the tensors share memory with the model."""
        config = asdict(self.config)
        if config["order"] == "raster":
            del config["order"]  # so that earlier versions read the file
        return SavedModel(self.kind, config, dict(self.state_dict()))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Builds a model with random weights from a saved config."""
        return cls(GPTConfig(**config))


def build_positions(config: GPTConfig) -> Positions:
    """Builds the positions of prefix and tokens, or in a model of any order of prefix and cells."""
    length = config.context_length
    if config.order == "any":
        length += 1  # any cell may be an input, the last one too
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.embed_dim, length, scale=SINUSOID_SCALE)
    if config.positions == "learned":
        return LearnedPositions(length, config.embed_dim)
    assert config.grid_size is not None
    order: FixedOrder = "raster" if config.order == "any" else config.order
    coordinates = sequence_coordinates(config.grid_size)[order_cells(order, config.grid_size)]
    if config.prefix_grid_size is None:
        prefix = coordinates.new_full((config.prefix_length, 2), math.nan)  # (p 2)
    else:
        prefix = sequence_coordinates(config.prefix_grid_size, config.grid_size)  # (p 2)
    return _positions_2d(
        config, torch.cat([prefix, coordinates]), zero_outside=config.zero_prefix_rotation
    )


def build_context_positions(config: GPTConfig) -> SinusoidalPositions2D | RotaryPositions2D:
    """Builds the positions of the context, aligned with the image's grid."""
    assert config.context_grid_size is not None
    reference = config.grid_size or config.context_grid_size
    return _positions_2d(config, sequence_coordinates(config.context_grid_size, reference))


def _positions_2d(
    config: GPTConfig, coordinates: Tensor, *, zero_outside: bool = False
) -> SinusoidalPositions2D | RotaryPositions2D:
    if config.positions == "rotary_2d":
        head_dim = config.embed_dim // config.num_heads
        return RotaryPositions2D(head_dim, coordinates, zero_outside=zero_outside)
    return SinusoidalPositions2D(config.embed_dim, coordinates, scale=SINUSOID_SCALE)


def sequence_coordinates(
    grid_size: tuple[int, int], reference: tuple[int, int] | None = None
) -> Tensor:
    """Returns the (row, column) `(h·w 2)` of each token, see `grid_coordinates`."""
    return to_tokens(grid_coordinates(grid_size, reference)[None])[0]


def apply_positions(
    x: Tensor, module: Positions, positions: Tensor
) -> tuple[Tensor, Rotation | None]:
    """Adds positions to embeddings `(b n d)`, or returns the rotation of queries and keys."""
    if isinstance(module, RotaryPositions2D):
        return x, module.rotation(positions)
    return module(x, positions), None
