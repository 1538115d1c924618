"""Cross-entropy of tokens from the features before the head, without all logits at once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["token_losses"]

MAX_LOGITS = 2**25  # held at once: 128 MiB in float32, for 16,384 codes 2,048 tokens


def token_losses(head: nn.Module, features: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    """Returns −log softmax(head(features)) at the tokens, in nats and float32 or better.

    Logits of many tokens would fill a GPU: 16,384 tokens and as many codes are 1 GiB, several times
    over. From `MAX_LOGITS` on, the tokens take turns, and the backward pass computes the logits of
    each turn again (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").

    Args:
        head: `(… d)` to `(… vocab_size)`.
        features: `(b n d)`.
        tokens: `(b n)` int64.
        vocab_size: number of logits of a token.

    Returns:
        `(b n)`.
    """
    rows, targets = features.flatten(0, 1), tokens.flatten()
    size = max(1, MAX_LOGITS // vocab_size)  # tokens a turn
    if len(rows) <= size:
        return _cross_entropy(head, rows, targets).view_as(tokens)
    device = features.device.type
    # without a half-precision copy of the weights that all turns share: their gradients would be
    # added up in half precision
    with torch.autocast(device, enabled=torch.is_autocast_enabled(device), cache_enabled=False):
        losses = [
            checkpoint(_cross_entropy, head, *turn, use_reentrant=False, preserve_rng_state=False)
            for turn in zip(rows.split(size), targets.split(size), strict=True)
        ]
    return torch.cat(losses).view_as(tokens)


def _cross_entropy(head: nn.Module, features: Tensor, tokens: Tensor) -> Tensor:
    logits = head(features)  # (n v)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, tokens, reduction="none")
