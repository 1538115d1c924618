"""The stage-2 model: a decoder-only transformer over codebook tokens."""

from taming.transformer.block import FeedForward, TransformerBlock
from taming.transformer.config import GPTConfig
from taming.transformer.gpt import GPT

__all__ = ["GPT", "FeedForward", "GPTConfig", "TransformerBlock"]
