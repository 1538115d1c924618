"""Scaled dot-product attention as its formula (Vaswani et al. 2017, "Attention Is All You Need").

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + mask) V                                (equation 1)

Rows are tokens. Row i of the softmax says how much query i takes of each value; it sums to one.
`taming.attention.fused` computes the same, faster; a test holds the two equal.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from taming.attention.masks import causal_mask

__all__ = ["attention", "attention_weights"]


def attention_weights(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """Returns the weights softmax(Q Kᵀ / √d_k + mask).

    Args:
        query: `(… n_q d_k)`.
        key: `(… n_k d_k)`.
        mask: boolean, broadcast to `(… n_q n_k)`: True where a query may attend to a key. In the
            formula it is 0 there and -∞ elsewhere.
        causal: the queries are the last `n_q` of the `n_k` tokens and do not see later ones.

    Returns:
        `(… n_q n_k)`; a row sums to 1, or is all zeros where a query may attend to nothing.
    """
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # (… n_q n_k)
    if causal:
        in_past = causal_mask(query.shape[-2], key.shape[-2], device=query.device)
        mask = in_past if mask is None else mask & in_past
    if mask is None:
        return scores.softmax(dim=-1)
    # The lowest finite number stands for -∞: a row without any key then has no NaN, in the
    # gradient neither, and the second fill makes it zero.
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
    """Computes Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + mask) V.

    Args:
        query: `(… n_q d_k)`.
        key: `(… n_k d_k)`.
        value: `(… n_k d_v)`.
        mask: see `attention_weights`.
        dropout: probability with which a weight is dropped; applied whatever the mode of a model.
        causal: see `attention_weights`.

    Returns:
        `(… n_q d_v)`; zeros for a query that may attend to nothing.
    """
    weights = attention_weights(query, key, mask, causal=causal)  # (… n_q n_k)
    return F.dropout(weights, dropout) @ value
