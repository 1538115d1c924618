"""One layer of the transformer."""

import torch.nn.functional as F
from torch import Tensor, nn

from taming.attention import LayerCache, MultiHeadAttention, Rotation
from taming.errors import UserError
from taming.linear import Linear

__all__ = ["NORMS", "FeedForward", "GatedFeedForward", "TransformerBlock"]


def layer_norm(dim: int, bias: bool) -> nn.Module:
    """(x − mean) / standard deviation, times a scale, plus a shift (Ba et al. 2016)."""
    return nn.LayerNorm(dim, bias=bias)


def rms_norm(dim: int, bias: bool) -> nn.Module:
    """X / root mean square, times a scale (Zhang and Sennrich 2019); it never has a shift."""
    return nn.RMSNorm(dim, eps=1e-5)


NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm}


class FeedForward(nn.Module):
    """GELU(x W₁ + b₁) W₂ + b₂ on each token by itself.

    Vaswani et al. 2017, section 3.3, with the GELU of GPT in place of the ReLU.

    Args:
        embed_dim: width of x and of the output.
        hidden_dim: width inside; None for four times as much.
        bias: whether b₁ and b₂ are there.
    """

    def __init__(self, embed_dim: int, hidden_dim: int | None = None, *, bias: bool = True) -> None:
        super().__init__()
        hidden_dim = 4 * embed_dim if hidden_dim is None else hidden_dim
        self.expand = Linear(embed_dim, hidden_dim, bias=bias)
        self.contract = Linear(hidden_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(b n d)` to `(b n d)`."""
        return self.contract(F.gelu(self.expand(x)))


class GatedFeedForward(nn.Module):
    """(SiLU(x W_gate) ⊙ x W_expand) W_contract on each token by itself: SwiGLU.

    Shazeer 2020, "GLU Variants Improve Transformer", equation 6.

    Args:
        embed_dim: width of x and of the output.
        hidden_dim: width inside; None for 8/3 of it, rounded up to a multiple of 64: about as many
            weights as a `FeedForward` has.
        bias: whether the three maps have biases.
    """

    def __init__(self, embed_dim: int, hidden_dim: int | None = None, *, bias: bool = True) -> None:
        super().__init__()
        hidden_dim = -(-8 * embed_dim // (3 * 64)) * 64 if hidden_dim is None else hidden_dim
        self.gate = Linear(embed_dim, hidden_dim, bias=bias)
        self.expand = Linear(embed_dim, hidden_dim, bias=bias)
        self.contract = Linear(hidden_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(b n d)` to `(b n d)`."""
        return self.contract(F.silu(self.gate(x)) * self.expand(x))


FEED_FORWARDS: dict[str, type[FeedForward | GatedFeedForward]] = {
    "gelu": FeedForward,
    "swiglu": GatedFeedForward,
}


class TransformerBlock(nn.Module):
    """Causal self-attention, then a feed-forward network, each normalised first and added to x.

    With a context, cross-attention to it stands between the two. The pre-norm order (Radford et al.
    2019, GPT-2) leaves the sum x free of normalisations from the first layer to the last, which is
    why deep ones train.

    Args:
        embed_dim: width d.
        num_heads: attention heads.
        context: whether there is a context to attend to, also of width d.
        norm: `"layer_norm"` or `"rms_norm"`.
        feed_forward: `"gelu"` or `"swiglu"`.
        feed_forward_dim: width inside the feed-forward network; None for its usual one.
        bias: whether linear maps and LayerNorms have biases.
        qk_norm: see `MultiHeadAttention`.
        dropout: probability of dropping an element of what each branch adds.
        attention_dropout: probability of dropping an attention weight; more than 0 is slow on CPUs,
            where the fast attention kernel has none.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        context: bool = False,
        norm: str = "layer_norm",
        feed_forward: str = "gelu",
        feed_forward_dim: int | None = None,
        bias: bool = True,
        qk_norm: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise UserError(f"norm is one of {', '.join(NORMS)}, not {norm!r}.")
        if feed_forward not in FEED_FORWARDS:
            raise UserError(
                f"feed_forward is one of {', '.join(FEED_FORWARDS)}, not {feed_forward!r}."
            )

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(
                embed_dim, num_heads, bias=bias, qk_norm=qk_norm, dropout=attention_dropout
            )

        self.attention_norm = NORMS[norm](embed_dim, bias)
        self.attention = attention()
        self.context_attention: MultiHeadAttention | None = None
        if context:
            self.context_norm = NORMS[norm](embed_dim, bias)
            self.context_attention = attention()
        self.feed_forward_norm = NORMS[norm](embed_dim, bias)
        self.feed_forward = FEED_FORWARDS[feed_forward](embed_dim, feed_forward_dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        context: tuple[Tensor, Tensor] | None = None,
        *,
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
        place: Tensor | None = None,
        rotate: Rotation | None = None,
    ) -> Tensor:
        """`(b n d)` to `(b n d)`.

        Args:
            x: with a cache, it follows the tokens that are in it.
            context: keys and values of `context_keys_and_values`.
            mask: boolean `(n n_k)`, instead of the causal one.
            cache: see `MultiHeadAttention`.
            place: likewise.
            rotate: of queries and keys, by their places.
        """
        attended = self.attention(
            self.attention_norm(x),
            mask=mask,
            causal=mask is None,
            cache=cache,
            place=place,
            rotate_queries=rotate,
            rotate_keys=rotate,
        )  # (b n d)
        x = x + self.dropout(attended)
        if self.context_attention is not None:
            assert context is not None
            normed = self.context_norm(x)
            attended = self.context_attention.attend(normed, *context, rotate_queries=rotate)
            x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))

    def context_keys_and_values(
        self, context: Tensor, rotate: Rotation | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the context `(b c d)`, the same for every token of x."""
        assert self.context_attention is not None
        return self.context_attention.keys_and_values(context, rotate)
