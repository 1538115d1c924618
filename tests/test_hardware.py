"""Which device multiplies bfloat16 in hardware."""

import pytest
import torch

from taming.hardware import device_name, has_bf16

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("name", ["amx_bf16", "avx512_bf16", "bf16"])
def test_processors_with_bf16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda there=there: {name: there})
        assert has_bf16(CPU) == there


def test_a_gpu_that_emulates_bf16_does_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation  # as on a T4

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    assert not has_bf16(CUDA)


def test_the_processor_is_named() -> None:
    assert f"{torch.get_num_threads()} threads" in device_name(CPU)
