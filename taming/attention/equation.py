"""Scaled dot-product attention: the formula written out, and the fast path.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + mask) V

Vaswani et al. 2017, "Attention Is All You Need", equation 1. Rows are tokens. Row i of the softmax
says how much query i takes of each value. `attention` and `fused_attention` compute the same; a
test compares them.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from taming.attention.masks import causal_mask

__all__ = ["attention", "attention_weights", "fused_attention"]


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """Returns the weights softmax(Q Kᵀ / √d_k + mask).

    Args:
        query: `(… n_q d_k)`.
        key: `(… n_k d_k)`.
        mask: boolean, broadcast to `(… n_q n_k)`: True where a query may attend to a key. In the
            formula True is 0 and False is -∞.
        causal: the queries are the last `n_q` of the `n_k` tokens and do not see later ones.

    Returns:
        `(… n_q n_k)`. A row sums to 1. It is all zeros if the query may attend to nothing.
    """
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # (… n_q n_k)
    if causal:
        past = causal_mask(query.shape[-2], key.shape[-2], device=query.device)
        mask = past if mask is None else mask & past
    if mask is None:
        return scores.softmax(dim=-1)
    # The lowest finite number replaces -∞, which would give NaN in a row without any key, also in
    # the gradient. The second fill makes such a row zero.
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(dim=-1).masked_fill(~mask, 0.0)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    *,
    causal: bool = False,
) -> Tensor:
    """Computes softmax(Q Kᵀ / √d_k + mask) V as written.

    Args:
        query: `(… n_q d_k)`.
        key: `(… n_k d_k)`.
        value: `(… n_k d_v)`.
        mask: see `attention_weights`.
        dropout: probability of dropping a weight, applied in every mode.
        causal: see `attention_weights`.

    Returns:
        `(… n_q d_v)`; zeros for a query that may attend to nothing.
    """
    weights = attention_weights(query, key, mask, causal=causal)  # (… n_q n_k)
    return F.dropout(weights, dropout) @ value  # (… n_q d_v)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    *,
    causal: bool = False,
) -> Tensor:
    """Computes `attention` with PyTorch's fused kernels, from the same arguments.

    The kernels never store the `(… n_q n_k)` weights (Dao et al. 2022, "FlashAttention").
    """
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    if num_queries == 1:
        causal = False  # the last token sees all others
    if causal and (mask is not None or num_queries != num_keys):
        # `is_causal` excludes another mask and aligns the queries with the first keys
        past = causal_mask(num_queries, num_keys, device=query.device)
        mask = past if mask is None else mask & past
        causal = False
    if mask is not None:
        mask = torch.atleast_2d(mask)  # the kernels reject a mask `(n_k)`
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal
    )
