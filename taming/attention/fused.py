"""Attention by PyTorch's fused kernels.

They compute the formula of `taming.attention.equation` without ever holding the `(… n_q n_k)`
weights (Dao et al. 2022, "FlashAttention"), zeros for a query that may attend to nothing included.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from taming.attention.masks import causal_mask

__all__ = ["fused_attention"]


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    *,
    causal: bool = False,
) -> Tensor:
    """Computes `taming.attention.equation.attention`, with the same arguments."""
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    if causal and num_queries == 1:
        causal = False  # the last token sees all the others
    if causal and (mask is not None or num_queries != num_keys):
        # is_causal excludes another mask, and takes the queries for the first of the keys
        in_past = causal_mask(num_queries, num_keys, device=query.device)
        mask = in_past if mask is None else mask & in_past
        causal = False
    if mask is not None:
        mask = torch.atleast_2d(mask)  # the kernels take no mask for the keys alone, `(n_k)`
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal
    )
