"""Capabilities of the processor and the GPU."""

import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch

__all__ = ["can_compile", "device_name", "has_bf16", "multiplies_faster_in_bf16", "product_seconds"]


def has_bf16(device: torch.device) -> bool:
    """Returns whether the hardware multiplies bfloat16; other devices emulate it slowly."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()  # "bf16" is the name on ARM
    return device.type == "cpu" and any(
        capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16")
    )


@cache
def multiplies_faster_in_bf16() -> bool:
    """Returns whether the processor multiplies matrices far faster in bfloat16 than in float32.

    Processors with bfloat16 differ too much to tell from their names, so this times products for
    half a second. Bfloat16 was 2.8 times as fast on an AMD EPYC with AVX-512.
    """
    if not has_bf16(torch.device("cpu")):
        return False
    single, half = (
        product_seconds(dtype, 1024, min_seconds=0.1) for dtype in (torch.float32, torch.bfloat16)
    )
    return single > 1.5 * half


def can_compile(device: torch.device) -> bool:
    """Returns whether `torch.compile` finds a compiler and, for GPUs, Triton."""
    if device.type == "cuda":  # Triton compiles the code that launches its kernels
        compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
        return find_spec("triton") is not None and any(map(shutil.which, compilers))
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def device_name(device: torch.device) -> str:
    """Returns the name of the GPU, or of the processor with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = torch.cpu.get_capabilities().get("cpu_name", "CPU")
    return f"{name}, {torch.get_num_threads()} threads" if device.type == "cpu" else device.type


def product_seconds(
    dtype: torch.dtype = torch.float32, size: int = 2048, min_seconds: float = 1.0
) -> float:
    """Returns the median seconds of a product of two square matrices on the CPU.

    Durations in this unit are comparable between machines, and between busy and quiet hours.
    """
    from torch.utils.benchmark import Timer  # slow to import

    a, b = torch.rand(2, size, size).to(dtype)
    timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=min_seconds).median
