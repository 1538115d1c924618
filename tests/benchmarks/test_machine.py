"""What results say of the machine."""

import subprocess
import sys

import torch

from benchmarks.compare import ROOT
from benchmarks.machine import machine


def test_the_machine_is_named() -> None:
    named = machine()
    assert f"{torch.get_num_threads()} threads, " in named
    assert torch.backends.cpu.get_cpu_capability() in named
    assert named.endswith(f"; torch {torch.__version__}")


def test_the_product_is_timed_in_each_precision() -> None:
    command = [sys.executable, "-m", "benchmarks.machine"]
    _, *products = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    names = [line.partition(":")[0].rpartition(" ")[2] for line in products]
    assert names == ["torch.float32", "torch.bfloat16"]
