"""Metrics of tokenizers and generators, judges of images, and the evaluation protocol."""

from taming.evaluation.classifier import ClassifierTraining, ImageClassifier, train_classifier
from taming.evaluation.distances import FrechetDistance, frechet_distance
from taming.evaluation.features import FeatureExtractor, FeatureNetwork, load_feature_network
from taming.evaluation.judges import (
    JudgedImages,
    Judges,
    as_eight_bit,
    compare_features,
    in_proportion,
)
from taming.evaluation.metrics import (
    CodebookUsage,
    ExactMean,
    LabelMapMetrics,
    LPIPSMetric,
    ReconstructionMetrics,
    TokenLikelihood,
)
from taming.evaluation.protocol import protocol_differences, protocol_digest
from taming.evaluation.report import evaluation_rows, markdown_table, report_text

__all__ = [
    "ClassifierTraining",
    "CodebookUsage",
    "ExactMean",
    "FeatureExtractor",
    "FeatureNetwork",
    "FrechetDistance",
    "ImageClassifier",
    "JudgedImages",
    "Judges",
    "LPIPSMetric",
    "LabelMapMetrics",
    "ReconstructionMetrics",
    "TokenLikelihood",
    "as_eight_bit",
    "compare_features",
    "evaluation_rows",
    "frechet_distance",
    "in_proportion",
    "load_feature_network",
    "markdown_table",
    "protocol_differences",
    "protocol_digest",
    "report_text",
    "train_classifier",
]
