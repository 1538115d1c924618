"""Drawing images from a trained generator."""

from taming.generation.generator import ImageGenerator, check_keep_rows, load_condition_tokenizer
from taming.generation.options import Guidance, SamplingOptions
from taming.generation.rejection import BestSamples, sample_best
from taming.generation.speed import SamplingDtype

__all__ = [
    "BestSamples",
    "Guidance",
    "ImageGenerator",
    "SamplingDtype",
    "SamplingOptions",
    "check_keep_rows",
    "load_condition_tokenizer",
    "sample_best",
]
