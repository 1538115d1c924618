"""Measures of tokenizers and generators."""

from taming.evaluation.codebook import CodebookUsage
from taming.evaluation.label_maps import LabelMapMetrics
from taming.evaluation.pictures import as_palette, image_grid, reconstruction_grid, to_uint8
from taming.evaluation.reconstruction import ReconstructionMetrics

__all__ = [
    "CodebookUsage",
    "LabelMapMetrics",
    "ReconstructionMetrics",
    "as_palette",
    "image_grid",
    "reconstruction_grid",
    "to_uint8",
]
