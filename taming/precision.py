"""Arithmetic that must not be abbreviated."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["full_precision"]


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiplies and convolves float32 in float32.

    Training lets GPUs multiply with TF32's 10 bits, and PyTorch lets them convolve so in any case:
    too few to tell codes apart, and for SSIM, a difference of two nearly equal numbers.
    """
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
