"""What the commands do, as plain typed functions."""

from taming.workflows.digits_report import DigitsReport, report_digits
from taming.workflows.encode import encode_dataset
from taming.workflows.reconstruct import ReconstructionReport, reconstruct_images
from taming.workflows.reconstruction_settings import ReconstructionSettings
from taming.workflows.sample import SampleSettings, sample_images

__all__ = [
    "DigitsReport",
    "ReconstructionReport",
    "ReconstructionSettings",
    "SampleSettings",
    "encode_dataset",
    "reconstruct_images",
    "report_digits",
    "sample_images",
]
