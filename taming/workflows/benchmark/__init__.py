"""The speed of this program beside others, on the same architecture, batch and device."""

from taming.workflows.benchmark.cases import (
    CASES,
    AutoencoderCase,
    BenchmarkCase,
    TransformerCase,
)
from taming.workflows.benchmark.compare import run_benchmark
from taming.workflows.benchmark.our_autoencoder import autoencoder_build
from taming.workflows.benchmark.our_transformer import transformer_build
from taming.workflows.benchmark.ours import OurSide
from taming.workflows.benchmark.peer import PeerConfig
from taming.workflows.benchmark.report import comparison_table
from taming.workflows.benchmark.settings import BenchmarkSettings
from taming.workflows.benchmark.timing import Comparison

__all__ = [
    "CASES",
    "AutoencoderCase",
    "BenchmarkCase",
    "BenchmarkSettings",
    "Comparison",
    "OurSide",
    "PeerConfig",
    "TransformerCase",
    "autoencoder_build",
    "comparison_table",
    "run_benchmark",
    "transformer_build",
]
