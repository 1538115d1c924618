"""Contexts: a mode or a precision that ends with the block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["evaluation_mode", "full_precision", "without_cudnn_attention"]


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Puts a module into eval mode, and afterwards each of its parts back into its own mode."""
    training_parts = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training_parts:
            part.training = True


@contextmanager
def full_precision() -> Iterator[None]:
    """Disables TF32: float32 products and convolutions in full precision.

    TF32's 10 bits are too few to tell codes apart, and for SSIM, a difference of two nearly equal
    numbers.

    PyTorch has two sets of settings for it, the older of which raises RuntimeError where the newer
    (`fp32_precision`) says otherwise. Both are set, for code in here may read either.
    """
    backends: Any = torch.backends  # which type checkers do not know all of
    cpu = backends.mkldnn
    operations = (backends.cuda.matmul, backends.cudnn.conv, cpu.matmul, cpu.conv)
    newer = [operation.fp32_precision for operation in operations]
    older = _older()
    if older is not None:
        _set_older("highest", False)
    for operation in operations:
        operation.fp32_precision = "ieee"
    try:
        yield
    finally:
        if older is not None:
            _set_older(*older)
        for operation, precision in zip(operations, newer, strict=True):
            operation.fp32_precision = "none"  # it then follows the setting for all operations
            if operation.fp32_precision != precision:
                operation.fp32_precision = precision


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Excludes cuDNN's attention, which PyTorch prefers on Hopper and newer GPUs.

    It builds a plan for each number of keys that it has not seen, which takes up to a second, and
    decoding has another number at every token.
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def _older() -> tuple[str, bool] | None:
    """Returns the older settings of products and convolutions; None where the newer differ."""
    try:
        _ = torch.backends.cuda.matmul.allow_tf32  # raises in a case in which the others do not
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _set_older(products: str, convolutions: bool) -> None:
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions
