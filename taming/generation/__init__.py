"""Drawing images from a trained generator."""

from taming.generation.decoding import (
    decode_tokens,
    greedy_choice,
    random_choice,
    random_numbers,
)
from taming.generation.filtering import apply_temperature, filter_logits, keep_top_k, keep_top_p
from taming.generation.generator import ImageGenerator
from taming.generation.rejection import BestSamples, sample_best

__all__ = [
    "BestSamples",
    "ImageGenerator",
    "apply_temperature",
    "decode_tokens",
    "filter_logits",
    "greedy_choice",
    "keep_top_k",
    "keep_top_p",
    "random_choice",
    "random_numbers",
    "sample_best",
]
