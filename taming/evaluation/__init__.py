"""Measures of tokenizers and generators."""

from taming.evaluation.codebook import CodebookUsage
from taming.evaluation.pictures import image_grid, reconstruction_grid, to_uint8
from taming.evaluation.reconstruction import ReconstructionMetrics

__all__ = [
    "CodebookUsage",
    "ReconstructionMetrics",
    "image_grid",
    "reconstruction_grid",
    "to_uint8",
]
