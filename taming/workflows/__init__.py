"""What the commands do, as plain typed functions."""

from taming.workflows.digits_report import report_digits
from taming.workflows.encode_dataset import encode_dataset
from taming.workflows.evaluate import evaluate_model
from taming.workflows.reconstruct import reconstruct_images
from taming.workflows.sample import sample_images
from taming.workflows.sample_inputs import GivenImages, ImagesToComplete

__all__ = [
    "GivenImages",
    "ImagesToComplete",
    "encode_dataset",
    "evaluate_model",
    "reconstruct_images",
    "report_digits",
    "sample_images",
]
