"""The description of the machine in the results."""

import runpy

import pytest
import torch

from benchmarks.machine import machine


def test_describes_the_machine() -> None:
    text = machine()
    assert f"{torch.get_num_threads()} threads, " in text
    assert torch.backends.cpu.get_cpu_capability() in text
    assert text.endswith(f"; torch {torch.__version__}")


@pytest.mark.filterwarnings("ignore:'benchmarks.machine' found in sys.modules")
def test_times_the_product_in_each_precision(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("benchmarks.machine", run_name="__main__")
    _, *products = capsys.readouterr().out.splitlines()
    names = [line.partition(":")[0].rpartition(" ")[2] for line in products]
    assert names == ["torch.float32", "torch.bfloat16"]
