"""Drawing images from a trained generator."""

from taming.generation.generator import (
    ImageGenerator,
    check_keep_rows,
    load_condition_tokenizer,
    load_model,
)
from taming.generation.inspection import (
    attention_maps,
    candidates,
    codes_alone,
    token_surprise,
)
from taming.generation.options import Guidance, SamplingOptions
from taming.generation.rejection import BestSamples, sample_best
from taming.generation.speed import SamplingDtype

__all__ = [
    "BestSamples",
    "Guidance",
    "ImageGenerator",
    "SamplingDtype",
    "SamplingOptions",
    "attention_maps",
    "candidates",
    "check_keep_rows",
    "codes_alone",
    "load_condition_tokenizer",
    "load_model",
    "sample_best",
    "token_surprise",
]
