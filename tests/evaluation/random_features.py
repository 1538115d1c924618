"""Features of images that do not exist."""

import torch
from torch import Tensor


def features(count: int, width: int, seed: int, shift: float = 0.0) -> Tensor:
    """Correlated features `(count width)` that are not normal."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=torch.Generator().manual_seed(9)) / width**0.5
    return (torch.randn(count, width, generator=generator) @ mixing + shift).relu()
