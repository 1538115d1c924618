"""Collectives of the processes of one training, or of one command under `torchrun`.

All ranks must make the same collective calls, or they wait forever. A single process keeps its own
values.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from taming.runtime.errors import UserError

__all__ = ["from_first_rank", "gather", "gather_in_order", "gather_shares", "largest_share",
    "mean_over_ranks", "means_over_ranks", "num_ranks", "on_first_rank", "rank", "rank_share",
    "sum_over_ranks"]  # fmt: skip

T = TypeVar("T")


def rank() -> int:
    """Returns the number of this process, from 0; 0 without a process group."""
    return 0 if _alone() else dist.get_rank()


def num_ranks() -> int:
    """Returns the number of processes; 1 without a process group."""
    return 1 if _alone() else dist.get_world_size()


def rank_share(items: Iterable[T]) -> Iterator[T]:
    """Yields every W-th item from item r, on rank r of W."""
    return islice(items, rank(), None, num_ranks())


def largest_share(total: int) -> int:
    """Returns how many of `total` items `rank_share` gives the first rank, the largest share."""
    return math.ceil(total / num_ranks())


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum of all ranks' tensors on every rank, without gradient."""
    if _alone():
        return values.detach()
    total = _own_copy(values)
    dist.all_reduce(total)
    return total


def mean_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Returns the mean of all ranks' tensors, with the gradient of this rank's tensor.

    Data-parallel training averages gradients over the ranks, which gives the gradient of the mean.
    """
    if _alone():
        return values
    mean = sum_over_ranks(values) / dist.get_world_size()
    return mean + (values - values.detach()) if values.requires_grad else mean


def means_over_ranks(*values: torch.Tensor) -> list[torch.Tensor]:
    """Returns the mean of each tensor over all ranks, without gradient, in one exchange."""
    if _alone():
        return [value.detach() for value in values]
    joined = mean_over_ranks(torch.cat([value.detach().flatten() for value in values]))
    parts = joined.split([value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]


def from_first_rank(values: torch.Tensor) -> torch.Tensor:
    """Returns the first rank's tensor on every rank, without gradient; shapes must be equal."""
    if _alone():
        return values.detach()
    copy = _own_copy(values)
    dist.broadcast(copy, src=0)
    return copy


def on_first_rank(function: Callable[[], T]) -> T:
    """Calls a function on the first rank; returns its result or raises its error on all ranks.

    Errors other than `UserError` become a `RuntimeError` with the same text.
    """
    if _alone():
        return function()
    outcome: list[Any] = [None, None]  # result and error
    if rank() == 0:
        try:
            outcome[0] = function()
        except UserError as error:
            outcome[1] = error
        except Exception as error:  # some cannot be pickled
            outcome[1] = RuntimeError(f"{type(error).__name__}: {error}")
            outcome[1].__cause__ = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def gather(value: T) -> list[T]:
    """Returns all ranks' objects on the first rank, in rank order; an empty list on the others."""
    if _alone():
        return [value]
    received: list[Any] | None = [None] * num_ranks() if rank() == 0 else None
    dist.gather_object(value, received, dst=0)
    return received or []


def gather_shares(results: Sequence[T]) -> list[T]:
    """Collects on the first rank the results of all `rank_share`s, in the order of the items."""
    ranks = gather([(result,) for result in results])
    turns = zip_longest(*ranks, fillvalue=())
    return list(chain.from_iterable(chain.from_iterable(turns)))


def gather_in_order(results: Iterable[T], total: int) -> Iterator[T]:
    """Yields on the first rank the `total` results of all `rank_share`s, in order of the items.

    The other ranks yield nothing. All ranks advance together, one result each.
    """
    own_results = iter(results)
    for start in range(0, total, num_ranks()):
        yield from gather(next(own_results, None))[: total - start]  # type: ignore[misc]


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())


def _own_copy(values: torch.Tensor) -> torch.Tensor:
    # ranks exchange elements in memory order, which must be the same on all of them
    return values.detach().clone(memory_format=torch.contiguous_format)
