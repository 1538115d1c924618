"""Values shared by the processes of one training; a single process keeps its own.

Every rank must call them equally often, or all wait for ever: only training does, whose batches are
equally many on all ranks.
"""

import torch
import torch.distributed as dist

__all__ = ["from_first_rank", "mean_over_ranks", "sum_over_ranks"]


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum of all ranks' tensors, on every rank; without gradient."""
    if _alone():
        return values.detach()
    total = _own_copy(values)
    dist.all_reduce(total)
    return total


def mean_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Returns the mean of all ranks' tensors, with the gradient of this rank's part.

    Data-parallel training averages gradients over the ranks, and the average of the parts'
    gradients is the mean's.
    """
    if _alone():
        return values
    mean = sum_over_ranks(values) / dist.get_world_size()
    return mean + (values - values.detach()) if values.requires_grad else mean


def from_first_rank(values: torch.Tensor) -> torch.Tensor:
    """Returns the first rank's tensor on every rank, all of one shape; without gradient."""
    if _alone():
        return values.detach()
    copy = _own_copy(values)
    dist.broadcast(copy, src=0)
    return copy


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())


def _own_copy(values: torch.Tensor) -> torch.Tensor:
    # laid out alike on all ranks: elements are exchanged by their place in memory
    return values.detach().clone(memory_format=torch.contiguous_format)
