"""Metrics of tokenizers and generators, judges of images, and the evaluation protocol."""

from taming.evaluation.classifier import ClassifierTraining, ImageClassifier
from taming.evaluation.distances import FrechetDistance
from taming.evaluation.features import FeatureExtractor, FeatureNetwork, load_feature_network
from taming.evaluation.judges import in_proportion
from taming.evaluation.metrics import (
    CodebookUsage,
    ExactMean,
    LabelMapMetrics,
    LPIPSMetric,
    ReconstructionMetrics,
    TokenLikelihood,
)
from taming.evaluation.protocol import protocol_differences
from taming.evaluation.report import evaluation_rows, markdown_table, report_text

__all__ = ["ClassifierTraining", "CodebookUsage", "ExactMean", "FeatureExtractor",
    "FeatureNetwork", "FrechetDistance", "ImageClassifier", "LPIPSMetric",
    "LabelMapMetrics", "ReconstructionMetrics", "TokenLikelihood", "evaluation_rows",
    "in_proportion", "load_feature_network", "markdown_table", "protocol_differences",
    "report_text"]  # fmt: skip
