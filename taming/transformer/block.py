"""One layer of the transformer."""

import torch.nn.functional as F
from torch import Tensor, nn

from taming.attention import CacheUpdate, MultiHeadAttention, Rotation
from taming.transformer.config import GPTConfig

__all__ = ["FeedForward", "GatedFeedForward", "TransformerBlock", "build_norm"]


def build_norm(config: GPTConfig) -> nn.Module:
    """Builds LayerNorm (Ba et al. 2016) or RMSNorm, without shift (Zhang and Sennrich 2019)."""
    if config.norm == "rms_norm":
        return nn.RMSNorm(config.embed_dim, eps=1e-5)
    return nn.LayerNorm(config.embed_dim, bias=config.bias)


class FeedForward(nn.Module):
    """GELU(x W₁ + b₁) W₂ + b₂ for each token.

    Vaswani et al. 2017, equation 2, with GPT's GELU instead of the ReLU.

    Args:
        embed_dim: width of x and of the output.
        hidden_dim: width between the maps; None for 4 · embed_dim.
        bias: whether the maps have biases.
    """

    def __init__(self, embed_dim: int, hidden_dim: int | None = None, *, bias: bool = True) -> None:
        super().__init__()
        hidden_dim = 4 * embed_dim if hidden_dim is None else hidden_dim
        self.expand = nn.Linear(embed_dim, hidden_dim, bias=bias)
        self.contract = nn.Linear(hidden_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(b n d)` to `(b n d)`."""
        return self.contract(F.gelu(self.expand(x)))


class GatedFeedForward(nn.Module):
    """SwiGLU: (SiLU(x W_gate) ⊙ x W_expand) W_contract for each token.

    Shazeer 2020, "GLU Variants Improve Transformer", equation 6. One matrix holds W_gate and
    W_expand.

    Args:
        embed_dim: width of x and of the output.
        hidden_dim: width between the maps; None for 8/3 · embed_dim, rounded up to a multiple of
            64, which gives about as many weights as `FeedForward`.
        bias: whether the maps have biases.
    """

    def __init__(self, embed_dim: int, hidden_dim: int | None = None, *, bias: bool = True) -> None:
        super().__init__()
        hidden_dim = -(-8 * embed_dim // (3 * 64)) * 64 if hidden_dim is None else hidden_dim
        self.gate_expand = nn.Linear(embed_dim, 2 * hidden_dim, bias=bias)
        self.contract = nn.Linear(hidden_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(b n d)` to `(b n d)`."""
        gate, expanded = self.gate_expand(x).chunk(2, dim=-1)  # (b n hidden_dim)
        return self.contract(F.silu(gate) * expanded)


class TransformerBlock(nn.Module):
    """Adds causal self-attention to x, cross-attention to a context if any, and a feed-forward net.

    Each reads Norm(x). In this pre-norm order (Radford et al. 2019, GPT-2) no normalisation
    interrupts the sum x from the first layer to the last, so deep models train.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(
                config.embed_dim,
                config.num_heads,
                bias=config.bias,
                qk_norm=config.qk_norm,
                dropout=config.attention_dropout,
            )

        self.attention_norm = build_norm(config)
        self.attention = attention()
        self.context_attention: MultiHeadAttention | None = None
        if config.num_context_ids > 0:
            self.context_norm = build_norm(config)
            self.context_attention = attention()
        self.feed_forward_norm = build_norm(config)
        feed_forward = GatedFeedForward if config.feed_forward == "swiglu" else FeedForward
        self.feed_forward = feed_forward(
            config.embed_dim, config.feed_forward_dim, bias=config.bias
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        context: tuple[Tensor, Tensor] | None = None,
        *,
        mask: Tensor | None = None,
        update_cache: CacheUpdate | None = None,
        rotations: tuple[Rotation | None, Rotation | None] = (None, None),
    ) -> Tensor:
        """Maps `(b n d)` to `(b n d)`.

        Args:
            x: the tokens; with a cache, only the new ones.
            context: the context's keys and values `(b heads c d_k)`, which every token attends to.
            mask: boolean `(n n_k)`, instead of the causal mask.
            update_cache: see `MultiHeadAttention.forward`.
            rotations: rotate queries, and keys, by their positions.
        """
        rotate_queries, rotate_keys = rotations
        attended = self.attention(
            self.attention_norm(x),
            mask=mask,
            causal=mask is None,
            update_cache=update_cache,
            rotate_queries=rotate_queries,
            rotate_keys=rotate_keys,
        )  # (b n d)
        x = x + self.dropout(attended)
        if self.context_attention is not None:
            assert context is not None
            attended = self.context_attention.attend(
                self.context_norm(x), *context, rotate_queries=rotate_queries
            )  # (b n d)
            x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
