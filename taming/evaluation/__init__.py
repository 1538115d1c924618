"""Measures of tokenizers and generators."""

from taming.evaluation.classifier import (
    ClassifierTraining,
    ImageClassifier,
    train_classifier,
)
from taming.evaluation.frechet import (
    FeatureExtractor,
    FeatureStatistics,
    FrechetDistance,
    frechet_distance,
)
from taming.evaluation.judging import JudgedImages, Judges, in_proportion, measure_validation
from taming.evaluation.metrics import (
    CodebookUsage,
    ExactMean,
    LabelMapMetrics,
    LPIPSMetric,
    ReconstructionMetrics,
    TokenLikelihood,
)
from taming.evaluation.report import markdown_table, report_text
from taming.evaluation.tiling import reconstruct_tiled

__all__ = [
    "ClassifierTraining",
    "CodebookUsage",
    "ExactMean",
    "FeatureExtractor",
    "FeatureStatistics",
    "FrechetDistance",
    "ImageClassifier",
    "JudgedImages",
    "Judges",
    "LPIPSMetric",
    "LabelMapMetrics",
    "ReconstructionMetrics",
    "TokenLikelihood",
    "frechet_distance",
    "in_proportion",
    "markdown_table",
    "measure_validation",
    "reconstruct_tiled",
    "report_text",
    "train_classifier",
]
