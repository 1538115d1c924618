"""The description of the machine in the results."""

import subprocess
import sys

import torch

from benchmarks.compare import ROOT
from benchmarks.machine import machine


def test_describes_the_machine() -> None:
    text = machine()
    assert f"{torch.get_num_threads()} threads, " in text
    assert torch.backends.cpu.get_cpu_capability() in text
    assert text.endswith(f"; torch {torch.__version__}")


def test_times_the_product_in_each_precision() -> None:
    command = [sys.executable, "-m", "benchmarks.machine"]
    _, *products = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    names = [line.partition(":")[0].rpartition(" ")[2] for line in products]
    assert names == ["torch.float32", "torch.bfloat16"]
