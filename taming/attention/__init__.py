"""Attention: the equation, its fast path, masks, multiple heads, and the cache for decoding."""

from taming.attention.cache import CacheView, KeyValueCache
from taming.attention.equation import attention, attention_weights, fused_attention
from taming.attention.masks import causal_mask, prefix_causal_mask
from taming.attention.multihead import CacheUpdate, MultiHeadAttention, Rotation

__all__ = [
    "CacheUpdate",
    "CacheView",
    "KeyValueCache",
    "MultiHeadAttention",
    "Rotation",
    "attention",
    "attention_weights",
    "causal_mask",
    "fused_attention",
    "prefix_causal_mask",
]
