"""The unit of other timings, and the peaks that shares are of."""

import pytest
import torch

from benchmarks import machine

CPU = torch.device("cpu")


def test_the_product_is_timed_in_each_precision(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "product_seconds", lambda dtype: 0.1)
    threads = torch.get_num_threads()
    machine.main(["--threads=1"])
    torch.set_num_threads(threads)
    first, *products = capsys.readouterr().out.splitlines()
    assert torch.backends.cpu.get_cpu_capability() in first and first.endswith("; 1 threads")
    assert [line.split(":")[0].split(" in ")[1] for line in products] == ["float32", "bf16"]


def test_calls_are_counted() -> None:
    calls: list[int] = []
    assert len(machine.seconds_of(lambda: calls.append(1), CPU, rounds=3, calls=4)) == 3
    assert len(calls) == (2 + 3) * 4


def test_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "seconds_of", lambda *_, **__: [0.5, 0.25, 1.0])
    # the best round: a product's multiplications and additions, and bytes both read and written
    assert machine.product_flops(CPU, torch.bfloat16, size=8) == 2 * 8**3 / 0.25
    assert machine.copy_bandwidth(CPU, num_bytes=100) == 200 / 0.25
