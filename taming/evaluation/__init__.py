"""Measures of tokenizers and generators."""

from taming.evaluation.classifier import (
    ClassifierTraining,
    ImageClassifier,
    train_classifier,
)
from taming.evaluation.contract import contract_differences, contract_digest
from taming.evaluation.features import FeatureExtractor, FeatureNetwork, load_feature_network
from taming.evaluation.frechet import FrechetDistance, frechet_distance
from taming.evaluation.judging import (
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
from taming.evaluation.neighbours import memorisation
from taming.evaluation.report import evaluation_rows, image_sets, markdown_table, report_text
from taming.evaluation.tiling import reconstruct_tiled
from taming.evaluation.validation import MeasuredValidation, measure_validation

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
    "MeasuredValidation",
    "ReconstructionMetrics",
    "TokenLikelihood",
    "as_eight_bit",
    "compare_features",
    "contract_differences",
    "contract_digest",
    "evaluation_rows",
    "frechet_distance",
    "image_sets",
    "in_proportion",
    "load_feature_network",
    "markdown_table",
    "measure_validation",
    "memorisation",
    "reconstruct_tiled",
    "report_text",
    "train_classifier",
]
