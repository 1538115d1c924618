"""Multi-head attention: one module for self-, causal and cross-attention."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taming.attention.equation import attention, fused_attention
from taming.runtime.errors import UserError

__all__ = ["CacheUpdate", "MultiHeadAttention", "Rotation"]

Rotation = Callable[[Tensor], Tensor]
"""Rotates queries or keys `(b heads n d_k)` by angles that depend on their positions."""

CacheUpdate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Writes keys and values to a cache and returns all visible ones; see `CacheView.update`."""


class HeadNorm(nn.RMSNorm):
    """RMSNorm of each head's queries or keys, in their dtype.

    CUDA's autocast would compute it in float32, with a copy in each direction.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `(… d)`."""
        assert self.weight is not None
        with torch.autocast(x.device.type, enabled=False):
            return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, …, head_h) W_O with head_i = Attention(X W_Qᵢ, S W_Kᵢ, S W_Vᵢ).

    Vaswani et al. 2017, section 3.2.2. The inputs decide what it computes: self-attention if the
    source S is X itself, causal attention with `causal=True`, cross-attention with another source.
    One matrix holds W_Q, W_K and W_V of all heads. Self-attention multiplies once by all three,
    cross-attention once by W_Q and once by the other two.

    Args:
        embed_dim: width of x and of the output.
        num_heads: number of heads h.
        source_dim: width of the source; None for `embed_dim`.
        key_dim: width of the queries and keys of all heads; None for `embed_dim`.
        value_dim: width of the values of all heads; None for `embed_dim`.
        bias: whether the four linear maps have biases.
        qk_norm: scale each head's queries and keys to a root mean square of 1, times a learned
            vector, so that scores stay bounded (Dehghani et al. 2023, "Scaling Vision Transformers
            to 22 Billion Parameters", with LayerNorm).
        dropout: probability of dropping an attention weight in training, less than 1.
        fused: use the fast path; False computes the written-out equation.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        source_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        qk_norm: bool = False,
        dropout: float = 0.0,
        fused: bool = True,
    ) -> None:
        super().__init__()
        source_dim = embed_dim if source_dim is None else source_dim
        key_dim = embed_dim if key_dim is None else key_dim
        value_dim = embed_dim if value_dim is None else value_dim
        for width in (key_dim, value_dim):
            if width % num_heads:
                raise UserError(
                    f"a width of {width} cannot be split into {num_heads} attention heads. Choose "
                    "a width that is a multiple of the number of heads."
                )
        self.num_heads = num_heads
        self.dropout = dropout
        self.attention = fused_attention if fused else attention
        self.widths = (key_dim, key_dim, value_dim)
        self.query_key_value: nn.Linear | None = None
        if source_dim == embed_dim:
            self.query_key_value = nn.Linear(embed_dim, sum(self.widths), bias=bias)
        else:
            self.query = nn.Linear(embed_dim, key_dim, bias=bias)
            self.key_value = nn.Linear(source_dim, key_dim + value_dim, bias=bias)
        self.output = nn.Linear(value_dim, embed_dim, bias=bias)  # W_O
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()
        if qk_norm:
            self.query_norm = HeadNorm(key_dim // num_heads, eps=1e-6)
            self.key_norm = HeadNorm(key_dim // num_heads, eps=1e-6)

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        update_cache: CacheUpdate | None = None,
        rotate_queries: Rotation | None = None,
        rotate_keys: Rotation | None = None,
    ) -> Tensor:
        """Lets each token of x attend to the source.

        Args:
            x: `(b n_q embed_dim)`.
            source: `(b n_k source_dim)`; x itself where it is None.
            mask: boolean, broadcast to `(b heads n_q n_k)`: True where x may attend to the source.
            causal: the queries are the last `n_q` of the `n_k` tokens and do not see later ones.
            update_cache: caches keys and values of x and returns all `n_k`; for self-attention.
            rotate_queries: rotates the queries by their positions, see `RotaryPositions2D`.
            rotate_keys: rotates the keys.

        Returns:
            `(b n_q embed_dim)`.
        """
        if source is not None:
            keys, values = self.keys_and_values(source, rotate_keys)  # (b heads n_k d)
            return self.attend(
                x, keys, values, mask=mask, causal=causal, rotate_queries=rotate_queries
            )
        assert self.query_key_value is not None, "x cannot be the source: the widths differ"
        query, key, value = self.query_key_value(x).split(self.widths, dim=-1)  # (b n heads·d)
        keys, values = self._heads(key, self.key_norm, rotate_keys), self._heads(value)
        if update_cache is not None:
            keys, values = update_cache(keys, values)
        return self._attend(query, keys, values, mask, causal, rotate_queries)

    def keys_and_values(
        self, source: Tensor, rotate_keys: Rotation | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns `(b heads n_k d_k)` keys and `(b heads n_k d_v)` values of the source."""
        if self.query_key_value is None:
            both = self.key_value(source)  # (b n_k heads·(d_k+d_v))
        else:
            both = _multiply(source, self.query_key_value, slice(self.widths[0], None))
        key, value = both.split(self.widths[1:], dim=-1)
        return self._heads(key, self.key_norm, rotate_keys), self._heads(value)

    def attend(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        rotate_queries: Rotation | None = None,
    ) -> Tensor:
        """Computes `forward` from keys and values of the source, see `keys_and_values`."""
        if self.query_key_value is None:
            query = self.query(x)
        else:
            query = _multiply(x, self.query_key_value, slice(self.widths[0]))
        return self._attend(query, keys, values, mask, causal, rotate_queries)

    def _attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        causal: bool,
        rotate: Rotation | None,
    ) -> Tensor:
        queries = self._heads(query, self.query_norm, rotate)  # (b heads n_q d_k)
        dropout = self.dropout if self.training else 0.0
        heads = self.attention(
            queries, keys, values, mask, dropout, causal=causal
        )  # (b heads n_q d_v)
        concatenated = heads.transpose(1, 2).flatten(2)  # (b n_q value_dim)
        return self.output(concatenated)

    def _heads(
        self, x: Tensor, norm: nn.Module | None = None, rotate: Rotation | None = None
    ) -> Tensor:
        """Splits `(b n heads·d)` into heads `(b heads n d)`; normalises and rotates them."""
        heads = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (b heads n d)
        heads = heads if norm is None else norm(heads)
        return heads if rotate is None else rotate(heads)


def _multiply(x: Tensor, maps: nn.Linear, rows: slice) -> Tensor:
    """Applies some of the maps in a layer."""
    return F.linear(x, maps.weight[rows], None if maps.bias is None else maps.bias[rows])
