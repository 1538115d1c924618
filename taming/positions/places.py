"""Places: the numbers of the positions in a sequence, prefix first, counted from 0."""

import torch
from torch import Tensor

__all__ = ["places_end"]


def places_end(places: Tensor) -> int:
    """One more than the largest place; 0 where asking would wait for a GPU or end a compilation.

    Args:
        places: `(n,)` int64.
    """
    if places.device.type != "cpu" or torch.compiler.is_compiling():
        return 0
    return int(places.max()) + 1
