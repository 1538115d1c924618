"""What the commands do, as plain typed functions."""

from taming.workflows.digits_report import DigitsReport, report_digits
from taming.workflows.encode import encode_dataset
from taming.workflows.reconstruct import ReconstructionReport, reconstruct_images
from taming.workflows.reconstruction_settings import ReconstructionSettings
from taming.workflows.sample import SampleReport, sample_images
from taming.workflows.sample_settings import GivenImages, ImagesToComplete, SampleSettings

__all__ = [
    "DigitsReport",
    "GivenImages",
    "ImagesToComplete",
    "ReconstructionReport",
    "ReconstructionSettings",
    "SampleReport",
    "SampleSettings",
    "encode_dataset",
    "reconstruct_images",
    "report_digits",
    "sample_images",
]
