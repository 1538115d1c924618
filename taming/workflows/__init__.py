"""What the commands do, as plain typed functions."""

from taming.workflows.encode import encode_dataset
from taming.workflows.sample import SampleSettings, sample_images

__all__ = ["SampleSettings", "encode_dataset", "sample_images"]
