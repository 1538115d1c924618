"""Looks into a trained model: attention, surprise, candidates for a token, and its codes.

All functions run in evaluation mode and without gradients.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from taming.attention import attention_weights
from taming.conditioning import Condition
from taming.generation.conditional import ConditionalTransformer
from taming.runtime.contexts import evaluation_mode
from taming.tokenizer import VQGAN
from taming.transformer import GPT

__all__ = ["attention_maps", "candidates", "codes_alone", "token_surprise"]

CODES_AT_ONCE = 64
ALONE_SIDE = 3  # side, in codes, of the grid that shows one code; only its middle is returned


@torch.no_grad()
def attention_maps(
    generator: ConditionalTransformer,
    tokens: Tensor,
    condition: Condition = None,
    positions: Sequence[int] | None = None,
) -> Tensor:
    """Returns how much the prediction of each token attends to each token before it.

    The weights come from the written-out equation. The rest of a row, up to a sum of 1, goes to the
    prefix. The first token has only the prefix before it, so its row is all zeros.

    Args:
        generator: the model to look into.
        tokens: `(b n)` integers, n at most `num_tokens`.
        condition: see `ImageGenerator.sample_tokens`.
        positions: the q predicted tokens to return, which bounds the memory; None for all.

    Returns:
        `(b layers heads q n)` float32, by predicted token and by attended token.
    """
    n = tokens.shape[1]
    queries = torch.arange(n) if positions is None else torch.as_tensor(positions)
    queries = queries.to(generator.device)
    maps = []

    def keep(weights: Tensor) -> None:
        num_prefix = weights.shape[-1] - (n - 1)  # the last token is no input
        token_weights = weights[:, :, queries + num_prefix - 1, num_prefix:]  # (b heads q n-1)
        maps.append(F.pad(token_weights.float(), (0, 1)))

    with evaluation_mode(generator.transformer), _weights_of(generator.transformer, keep):
        generator.logits(tokens, condition)
    return torch.stack(maps, 1)


@torch.no_grad()
def token_surprise(
    generator: ConditionalTransformer, tokens: Tensor, condition: Condition = None
) -> Tensor:
    """Returns −log₂ p of each token given the earlier ones, `(b n)` bits; see `attention_maps`."""
    with evaluation_mode(generator.transformer):
        return generator.token_losses(tokens, condition) / math.log(2)


@torch.no_grad()
def candidates(
    generator: ConditionalTransformer,
    tokens: Tensor,
    position: int,
    condition: Condition = None,
    k: int = 10,
) -> tuple[Tensor, Tensor]:
    """Returns the k most probable codes at a position of the sequence, most probable first.

    They depend only on the tokens before the position, so tokens `(b n)` may end there. Temperature
    and guidance do not affect them.

    Returns:
        codes `(b k)` int64, and their probabilities `(b k)` float32; fewer than k if there are
        fewer codes.
    """
    with evaluation_mode(generator.transformer):
        logits = generator.logits(F.pad(tokens[:, :position], (0, 1)), condition)[:, -1]
    probabilities = logits.float().softmax(-1)  # (b v)
    values, codes = probabilities.topk(min(k, probabilities.shape[-1]))
    return codes, values


@torch.no_grad()
def codes_alone(vqgan: VQGAN, codes: Tensor) -> Tensor:
    """Decodes each code alone: fills a small grid with it and returns the middle.

    Args:
        vqgan: the tokenizer.
        codes: `(k,)` int64.

    Returns:
        `(k c f f)` with f the downsample factor, in [-1, 1]; label maps as logits.
    """
    pictures = []
    f, margin = vqgan.downsample_factor, ALONE_SIDE // 2
    middle = slice(margin * f, (margin + 1) * f)
    with evaluation_mode(vqgan):
        for batch in codes.to(vqgan.device).split(CODES_AT_ONCE):
            grids = batch[:, None, None].expand(-1, ALONE_SIDE, ALONE_SIDE)
            pictures.append(vqgan.decode(grids)[:, :, middle, middle])
    images = torch.cat(pictures).float()
    return images if vqgan.label_maps else images.clamp(-1, 1)


@contextmanager
def _weights_of(transformer: GPT, keep: Callable[[Tensor], None]) -> Iterator[None]:
    """Computes attention by the equation, and calls `keep` with each layer's weights."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        *,
        causal: bool = False,
    ) -> Tensor:
        weights = attention_weights(query, key, mask, causal=causal)  # (b heads n_q n_k)
        keep(weights)
        return weights @ value

    layers: list[Any] = [block.attention for block in transformer.blocks]
    before = [layer.attention for layer in layers]
    for layer in layers:
        layer.attention = attention
    try:
        yield
    finally:
        for layer, function in zip(layers, before, strict=True):
            layer.attention = function
