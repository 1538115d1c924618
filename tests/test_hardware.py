"""Which device multiplies bfloat16 in hardware."""

import sys

import pytest
import torch

from taming.hardware import (
    can_compile,
    device_name,
    has_bf16,
    has_matrix_bf16,
    product_seconds,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("name", ["amx_bf16", "avx512_bf16", "bf16"])
def test_processors_with_bf16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda there=there: {name: there})
        assert has_bf16(CPU) == there


def test_of_processors_those_with_amx_alone_multiply_matrices_of_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("amx_bf16", "avx512_bf16", "bf16"):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda name=name: {name: True})
        assert has_matrix_bf16(CPU) == (name == "amx_bf16")


def test_compiling_for_a_processor_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", sys.executable)  # any program that is there
    assert can_compile(CPU)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not can_compile(CPU)


def test_a_gpu_that_emulates_bf16_does_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation  # as on a T4

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    assert not has_bf16(CUDA) and not has_matrix_bf16(CUDA)


def test_the_processor_is_named() -> None:
    assert f"{torch.get_num_threads()} threads" in device_name(CPU)


def test_a_product_takes_time() -> None:
    assert product_seconds(size=8) > 0
