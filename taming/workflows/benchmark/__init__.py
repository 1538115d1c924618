"""The speed of this program beside others, on the same architecture, batch and device."""

from taming.workflows.benchmark.cases import BenchmarkCase, BenchmarkSettings
from taming.workflows.benchmark.compare import Comparison, run_benchmark
from taming.workflows.benchmark.ours import OurSide
from taming.workflows.benchmark.peer import PeerConfig
from taming.workflows.benchmark.report import comparison_table

__all__ = [
    "BenchmarkCase",
    "BenchmarkSettings",
    "Comparison",
    "OurSide",
    "PeerConfig",
    "comparison_table",
    "run_benchmark",
]
