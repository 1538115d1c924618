"""What the commands do, as plain typed functions."""

from taming.workflows.digits_report import DigitsReport, report_digits
from taming.workflows.encode import encode_dataset
from taming.workflows.sample import SampleSettings, sample_images

__all__ = ["DigitsReport", "SampleSettings", "encode_dataset", "report_digits", "sample_images"]
