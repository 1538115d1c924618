"""Which device multiplies bfloat16 in hardware."""

import shutil
import sys

import pytest
import torch

from taming.runtime import hardware
from taming.runtime.hardware import (
    can_compile,
    device_name,
    has_bf16,
    multiplies_faster_in_bf16,
    product_seconds,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("name", ["amx_bf16", "avx512_bf16", "bf16"])
def test_processors_with_bf16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda there=there: {name: there})
        assert has_bf16(CPU) == there


@pytest.mark.parametrize(("there", "seconds", "expected"), [
    (True, {torch.float32: 2.8, torch.bfloat16: 1.0}, True),
    (True, {torch.float32: 1.2, torch.bfloat16: 1.0}, False),
    (False, {}, False),  # and nothing is timed
])  # fmt: skip
def test_processors_that_multiply_faster_in_bf16(
    there: bool, seconds: dict[torch.dtype, float], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": there})
    monkeypatch.setattr(hardware, "product_seconds", lambda dtype, *_, **__: seconds[dtype])
    assert multiplies_faster_in_bf16.__wrapped__() == expected


def test_compiling_for_a_processor_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", sys.executable)  # any program that is there
    assert can_compile(CPU)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not can_compile(CPU)


def test_compiling_for_a_gpu_needs_triton_and_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "find_spec", lambda name: name)
    monkeypatch.setenv("CC", sys.executable)
    assert can_compile(CUDA)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not can_compile(CUDA)
    monkeypatch.delenv("CC")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "clang" else None)
    assert can_compile(CUDA)
    monkeypatch.setattr(hardware, "find_spec", lambda name: None)
    assert not can_compile(CUDA)


def test_a_gpu_that_emulates_bf16_does_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation  # as on a T4

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    assert not has_bf16(CUDA)


def test_the_processor_has_a_name_and_a_speed() -> None:
    assert f"{torch.get_num_threads()} threads" in device_name(CPU)
    assert product_seconds(size=8) > 0
