"""Cross-entropy of tokens without storing all logits at once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from taming.runtime.dtypes import at_least_float32

__all__ = ["token_losses"]

MAX_LOGITS = 2**25  # at once: 128 MiB in float32, or 2,048 tokens of 16,384 codes


def token_losses(head: nn.Module, features: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    """Returns −log softmax(head(features)) at the tokens, in nats and float32 or better.

    Logits can fill a GPU: 16,384 tokens and as many codes take 1 GiB per copy. More than
    `MAX_LOGITS` are therefore computed in chunks, and again in the backward pass (Chen et al. 2016,
    "Training Deep Nets with Sublinear Memory Cost").

    Args:
        head: maps `(… d)` to `(… v)`.
        features: `(b n d)`.
        tokens: `(b n)` int64.
        vocab_size: number v of logits per token.

    Returns:
        `(b n)`.
    """
    rows, targets = features.flatten(0, 1), tokens.flatten()  # (b·n d), (b·n)
    chunk_size = max(1, MAX_LOGITS // vocab_size)
    if len(rows) <= chunk_size:
        return _cross_entropy(head, rows, targets).view_as(tokens)
    device = features.device.type
    # Autocast would cache a half-precision copy of the head's weight and sum the gradients of all
    # chunks in half precision.
    with torch.autocast(device, enabled=torch.is_autocast_enabled(device), cache_enabled=False):
        losses = [
            checkpoint(_cross_entropy, head, *chunk, use_reentrant=False, preserve_rng_state=False)
            for chunk in zip(rows.split(chunk_size), targets.split(chunk_size), strict=True)
        ]
    return torch.cat(losses).view_as(tokens)


def _cross_entropy(head: nn.Module, features: Tensor, tokens: Tensor) -> Tensor:
    logits = at_least_float32(head(features))  # (n v)
    return F.cross_entropy(logits, tokens, reduction="none")
