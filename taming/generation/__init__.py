"""Drawing images from a trained generator."""

from taming.generation.checks import check_guidance, check_keep_rows
from taming.generation.choice import (
    TokenChoice,
    apply_temperature,
    filter_logits,
    guide,
    keep_top_k,
    keep_top_p,
    random_numbers,
)
from taming.generation.decoding import CompiledSteps, Steps, decode_tokens
from taming.generation.generator import ImageGenerator, load_condition_tokenizer
from taming.generation.options import Guidance, SamplingOptions, check_grid_size
from taming.generation.rejection import BestSamples, sample_best
from taming.generation.window import WindowRun, plan_windows

__all__ = [
    "BestSamples",
    "CompiledSteps",
    "Guidance",
    "ImageGenerator",
    "SamplingOptions",
    "Steps",
    "TokenChoice",
    "WindowRun",
    "apply_temperature",
    "check_grid_size",
    "check_guidance",
    "check_keep_rows",
    "decode_tokens",
    "filter_logits",
    "guide",
    "keep_top_k",
    "keep_top_p",
    "load_condition_tokenizer",
    "plan_windows",
    "random_numbers",
    "sample_best",
]
