"""What the processes of one training, or of one command under `torchrun`, share.

Collectives must be called equally often on every rank, or all wait for ever; a single process keeps
its own values.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from taming.runtime.errors import UserError

__all__ = [
    "dealt",
    "from_first_rank",
    "gather",
    "gather_dealt",
    "gather_in_turn",
    "largest_share",
    "mean_over_ranks",
    "means_over_ranks",
    "num_ranks",
    "on_first_rank",
    "rank",
    "sum_over_ranks",
]

T = TypeVar("T")


def rank() -> int:
    """Returns the number of this process among all that share the work, from 0 on."""
    return 0 if _alone() else dist.get_rank()


def num_ranks() -> int:
    """Returns the number of processes that share the work."""
    return 1 if _alone() else dist.get_world_size()


def dealt(items: Iterable[T]) -> Iterator[T]:
    """Yields this rank's items: of W ranks, rank r has the r-th and every W-th after it."""
    return islice(items, rank(), None, num_ranks())


def largest_share(total: int) -> int:
    """Returns how many of `total` items the first rank is dealt, and no other more."""
    return math.ceil(total / num_ranks())


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


def on_first_rank(function: Callable[[], T]) -> T:
    """Calls a function on the first rank alone; returns its result, or raises its error, on all.

    The other ranks get a `UserError` as it is, and the text of any other as a `RuntimeError`.
    """
    if _alone():
        return function()
    found: list[Any] = [None, None]  # result and error
    if rank() == 0:
        try:
            found[0] = function()
        except UserError as error:
            found[1] = error
        except Exception as error:  # not all can be pickled
            found[1] = RuntimeError(f"{type(error).__name__}: {error}")
            found[1].__cause__ = error
    dist.broadcast_object_list(found, src=0)
    if found[1] is not None:
        raise found[1]
    return found[0]


def gather(value: T) -> list[T]:
    """Returns all ranks' objects on the first one, in order of the ranks; none on the others."""
    if _alone():
        return [value]
    received: list[Any] | None = [None] * num_ranks() if rank() == 0 else None
    dist.gather_object(value, received, dst=0)
    return received or []


def gather_dealt(results: Sequence[T]) -> list[T]:
    """Returns on the first rank what all made of the items `dealt` to them, in the items' order."""
    ranks = gather([(result,) for result in results])
    turns = zip_longest(*ranks, fillvalue=())
    return list(chain.from_iterable(chain.from_iterable(turns)))


def gather_in_turn(results: Iterable[T], total: int) -> Iterator[T]:
    """Yields what the ranks make of the items `dealt` to them: all `total` results on the first.

    They come in order there; on the others there are none. Results are drawn from `results` one by
    one, so that no rank is further ahead than its neighbours by more than one.
    """
    mine = iter(results)
    for start in range(0, total, num_ranks()):
        yield from gather(next(mine, None))[: total - start]  # type: ignore[misc]


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())


def _own_copy(values: torch.Tensor) -> torch.Tensor:
    # laid out alike on all ranks: elements are exchanged by their place in memory
    return values.detach().clone(memory_format=torch.contiguous_format)
