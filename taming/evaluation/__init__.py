"""Measures of tokenizers and generators."""

from taming.evaluation.codebook import CodebookUsage
from taming.evaluation.features import FeatureExtractor
from taming.evaluation.frechet import FrechetDistance, frechet_distance
from taming.evaluation.label_maps import LabelMapMetrics
from taming.evaluation.perceptual import LPIPSMetric
from taming.evaluation.pictures import (
    as_palette,
    condition_grid,
    image_grid,
    pixel_grid,
    reconstruction_grid,
    to_uint8,
)
from taming.evaluation.reconstruction import ReconstructionMetrics

__all__ = [
    "CodebookUsage",
    "FeatureExtractor",
    "FrechetDistance",
    "LPIPSMetric",
    "LabelMapMetrics",
    "ReconstructionMetrics",
    "as_palette",
    "condition_grid",
    "frechet_distance",
    "image_grid",
    "pixel_grid",
    "reconstruction_grid",
    "to_uint8",
]
