"""Places: the numbers of the positions in a sequence, prefix first, counted from 0."""

import torch
from torch import Tensor

__all__ = ["places_end"]


def places_end(places: Tensor) -> int:
    """One more than the largest place; 0 inside a compiled or captured step.

    Such a step is repeated without Python, so that it must not depend on a number in a tensor.

    Args:
        places: `(n,)` int64.
    """
    captured = places.is_cuda and torch.cuda.is_current_stream_capturing()
    if captured or torch.compiler.is_compiling():
        return 0
    return int(places.max()) + 1
