"""What the processes of one training, or of one command under `torchrun`, share.

Collectives must be called equally often on every rank, or all wait for ever; a single process keeps
its own values.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

__all__ = [
    "from_first_rank",
    "gather_in_turn",
    "mean_over_ranks",
    "means_over_ranks",
    "num_ranks",
    "object_from_first_rank",
    "rank",
    "share_of",
    "sum_over_ranks",
]

T = TypeVar("T")


def rank() -> int:
    """Returns the number of this process among all that share the work, from 0 on."""
    return 0 if _alone() else dist.get_rank()


def num_ranks() -> int:
    """Returns the number of processes that share the work."""
    return 1 if _alone() else dist.get_world_size()


def share_of(total: int) -> range:
    """Returns this rank's part of `total` numbers, which are dealt out in runs of like length."""
    return range(total * rank() // num_ranks(), total * (rank() + 1) // num_ranks())


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


def means_over_ranks(*values: torch.Tensor) -> list[torch.Tensor]:
    """Returns the mean of each tensor over all ranks, in one exchange; without gradient."""
    if _alone():
        return [value.detach() for value in values]
    joined = mean_over_ranks(torch.cat([value.detach().flatten() for value in values]))
    parts = joined.split([value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]


def from_first_rank(values: torch.Tensor) -> torch.Tensor:
    """Returns the first rank's tensor on every rank, all of one shape; without gradient."""
    if _alone():
        return values.detach()
    copy = _own_copy(values)
    dist.broadcast(copy, src=0)
    return copy


def object_from_first_rank(value: T) -> T:
    """Returns the first rank's object on every rank; what the others pass is ignored."""
    if _alone():
        return value
    found = [value if rank() == 0 else None]
    dist.broadcast_object_list(found, src=0)
    return found[0]  # type: ignore[return-value]


def gather_in_turn(results: Iterable[T], total: int) -> Iterator[T]:
    """Yields the results of all ranks on the first one, in order; nothing on the others.

    Of `total` results, rank r of W makes the r-th and every W-th after it: they are drawn from
    `results` one by one, so that no rank is further ahead than its neighbours by more than one.
    """
    if _alone():
        yield from results
        return
    mine = iter(results)
    for start in range(0, total, num_ranks()):
        result = next(mine) if start + rank() < total else None
        received: list[Any] | None = [None] * num_ranks() if rank() == 0 else None
        dist.gather_object(result, received, dst=0)
        if received is not None:
            yield from received[: total - start]


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())


def _own_copy(values: torch.Tensor) -> torch.Tensor:
    # laid out alike on all ranks: elements are exchanged by their place in memory
    return values.detach().clone(memory_format=torch.contiguous_format)
