"""What the commands do, as plain typed functions."""

from taming.workflows.classifier_training import ClassifierTraining, train_classifier
from taming.workflows.digits_report import DigitsReport, report_digits
from taming.workflows.encode_dataset import encode_dataset
from taming.workflows.evaluate import EvaluationReport, evaluate_model
from taming.workflows.evaluation_checks import check_pictures
from taming.workflows.evaluation_settings import EvaluationSettings
from taming.workflows.reconstruct import ReconstructionReport, reconstruct_images
from taming.workflows.reconstruction_settings import ReconstructionSettings
from taming.workflows.sample import SampleReport, sample_images
from taming.workflows.sample_settings import GivenImages, ImagesToComplete, SampleSettings

__all__ = [
    "ClassifierTraining",
    "DigitsReport",
    "EvaluationReport",
    "EvaluationSettings",
    "GivenImages",
    "ImagesToComplete",
    "ReconstructionReport",
    "ReconstructionSettings",
    "SampleReport",
    "SampleSettings",
    "check_pictures",
    "encode_dataset",
    "evaluate_model",
    "reconstruct_images",
    "report_digits",
    "sample_images",
    "train_classifier",
]
