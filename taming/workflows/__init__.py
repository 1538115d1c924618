"""What the commands do, as plain typed functions."""

from taming.workflows.digits_report import DigitsReport, report_digits
from taming.workflows.encode_dataset import encode_dataset
from taming.workflows.evaluate import EvaluationReport, evaluate_model
from taming.workflows.reconstruct import ReconstructionReport, reconstruct_images
from taming.workflows.sample import SampleReport, sample_images
from taming.workflows.sample_inputs import GivenImages, ImagesToComplete

__all__ = [
    "DigitsReport",
    "EvaluationReport",
    "GivenImages",
    "ImagesToComplete",
    "ReconstructionReport",
    "SampleReport",
    "encode_dataset",
    "evaluate_model",
    "reconstruct_images",
    "report_digits",
    "sample_images",
]
