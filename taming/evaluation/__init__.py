"""Measures of tokenizers and generators."""

from taming.evaluation.agreement import ClassAgreement
from taming.evaluation.classifier import ImageClassifier, load_classifier
from taming.evaluation.codebook import CodebookUsage
from taming.evaluation.feature_statistics import FeatureStatistics
from taming.evaluation.features import FeatureExtractor
from taming.evaluation.frechet import FrechetDistance, frechet_distance
from taming.evaluation.label_maps import LabelMapMetrics
from taming.evaluation.likelihood import TokenLikelihood
from taming.evaluation.perceptual import LPIPSMetric
from taming.evaluation.reconstruction import ReconstructionMetrics

__all__ = [
    "ClassAgreement",
    "CodebookUsage",
    "FeatureExtractor",
    "FeatureStatistics",
    "FrechetDistance",
    "ImageClassifier",
    "LPIPSMetric",
    "LabelMapMetrics",
    "ReconstructionMetrics",
    "TokenLikelihood",
    "frechet_distance",
    "load_classifier",
]
