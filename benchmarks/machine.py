"""Times a fixed product of matrices and a copy: what a machine can do.

A duration divided by the product's seconds at the same hour can be compared between machines:

    python -m benchmarks.machine
"""

import argparse
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.peers.serve import processor
from taming.hardware import product_seconds

__all__ = ["copy_bandwidth", "product_flops", "seconds_of"]

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def seconds_of(
    call: Callable[[], object], device: torch.device, rounds: int = 5, calls: int = 1
) -> list[float]:
    """Returns the seconds of a call, one number a round, after two that are not counted."""
    seconds = []
    for number in range(2 + rounds):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        for _ in range(calls):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= 2:
            seconds.append((time.perf_counter() - started) / calls)
    return seconds


def product_flops(device: torch.device, dtype: torch.dtype, size: int = 8192) -> float:
    """Returns the operations a second of large products: the best round, a device's peak."""
    a, b = torch.rand(2, size, size, device=device).to(dtype)
    return 2 * size**3 / min(seconds_of(lambda: a @ b, device, calls=20))


def copy_bandwidth(device: torch.device, num_bytes: int = 2**30) -> float:
    """Returns the bytes read and written a second when `num_bytes` are copied: the best round."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / min(seconds_of(lambda: target.copy_(source), device, calls=10))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the processor, and what the product takes in each precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"{processor()}; {options.threads} threads")
    for name, dtype in DTYPES.items():
        seconds = product_seconds(dtype)
        print(
            f"product of two 2048×2048 matrices in {name}: {1000 * seconds:.1f} ms, "
            f"{2e-9 * 2048**3 / seconds:.0f} billion operations a second"
        )


if __name__ == "__main__":
    main()
