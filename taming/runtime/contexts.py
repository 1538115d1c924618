"""Context managers for evaluation mode and precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["evaluation_mode", "full_precision", "without_cudnn_attention"]


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Puts a module into evaluation mode, and restores the mode of each submodule afterwards."""
    training_parts = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training_parts:
            part.training = True


@contextmanager
def full_precision() -> Iterator[None]:
    """Disables TF32, so that float32 products and convolutions keep full precision.

    TF32 has 10 bits, too few for code search and for SSIM, a difference of nearly equal numbers.

    PyTorch has an older and a newer (`fp32_precision`) set of settings. The older raises
    RuntimeError if the two disagree. Code inside the context may read either, so both are set.
    """
    backends: Any = torch.backends  # type checkers do not know all of them
    cpu = backends.mkldnn
    operations = (backends.cuda.matmul, backends.cudnn.conv, cpu.matmul, cpu.conv)
    precisions = [operation.fp32_precision for operation in operations]
    older_settings = _older_settings()
    if older_settings is not None:
        _set_older_settings("highest", False)
    for operation in operations:
        operation.fp32_precision = "ieee"
    try:
        yield
    finally:
        if older_settings is not None:
            _set_older_settings(*older_settings)
        for operation, precision in zip(operations, precisions, strict=True):
            operation.fp32_precision = "none"  # follows the setting for all operations
            if operation.fp32_precision != precision:
                operation.fp32_precision = precision


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Excludes cuDNN's attention, which PyTorch prefers on Hopper and newer GPUs.

    cuDNN builds a plan for each new number of keys, and that can take a second. While decoding,
    every token has a new number of keys.
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def _older_settings() -> tuple[str, bool] | None:
    """Returns the older settings of products and convolutions; None if the newer ones differ."""
    try:
        _ = torch.backends.cuda.matmul.allow_tf32  # raises in a case where the others do not
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _set_older_settings(products: str, convolutions: bool) -> None:
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions
