"""One layer of the transformer."""

from torch import Tensor, nn

from taming.attention import LayerCache, MultiHeadAttention

__all__ = ["FeedForward", "TransformerBlock"]


class FeedForward(nn.Module):
    """GELU(x W₁ + b₁) W₂ + b₂ on each token by itself, four times as wide inside.

    Vaswani et al. 2017, section 3.3, with the GELU of GPT in place of the ReLU.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.expand = nn.Linear(embed_dim, 4 * embed_dim)
        self.activation = nn.GELU()
        self.contract = nn.Linear(4 * embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """`(b n d)` to `(b n d)`."""
        return self.contract(self.activation(self.expand(x)))


class TransformerBlock(nn.Module):
    """Causal self-attention, then a feed-forward network, each normalised first and added to x.

    The pre-norm order (Radford et al. 2019, GPT-2) leaves the sum x free of normalisations from
    the first layer to the last, which is why deep ones train.

    Args:
        embed_dim: width d.
        num_heads: attention heads.
        dropout: probability of dropping an element of what either branch adds.
        attention_dropout: probability of dropping an attention weight; more than 0 is slow on CPUs,
            where the fast attention kernel has none.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.attention = MultiHeadAttention(embed_dim, num_heads, dropout=attention_dropout)
        self.feed_forward_norm = nn.LayerNorm(embed_dim)
        self.feed_forward = FeedForward(embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """`(b n d)` to `(b n d)`; with a cache, x follows the tokens that are in it."""
        attended = self.attention(self.attention_norm(x), causal=True, cache=cache)  # (b n d)
        x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
