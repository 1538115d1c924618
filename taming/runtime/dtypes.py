"""The dtype of a computation."""

import torch
from torch import Tensor

__all__ = ["at_least_float32"]


def at_least_float32(values: Tensor) -> Tensor:
    """Returns half-precision values as float32; float32 and float64 stay as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
