"""Boolean attention masks: True where a query (row) may attend to a key (column)."""

import torch
from torch import Tensor

__all__ = ["causal_mask", "prefix_causal_mask"]


def causal_mask(
    num_queries: int, num_keys: int | None = None, *, device: torch.device | str | None = None
) -> Tensor:
    """Lets each token attend to itself and to earlier tokens.

    Returns:
        `(num_queries num_keys)`. If there are more keys than queries, the queries are the last
        tokens, as in decoding with a cache.
    """
    num_keys = num_queries if num_keys is None else num_keys
    assert num_keys >= num_queries, f"{num_queries} causal queries and {num_keys} keys"
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return ones.tril(diagonal=num_keys - num_queries)


def prefix_causal_mask(
    length: int,
    num_prefix: int,
    *,
    device: torch.device | str | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Lets the first `num_prefix` tokens see each other in both directions.

    The other tokens follow the `mask`, or without one causal order.

    Returns:
        `(length length)`, or the shape of the mask.
    """
    mask = causal_mask(length, device=device) if mask is None else mask.clone()
    mask[:num_prefix, :num_prefix] = True
    return mask
