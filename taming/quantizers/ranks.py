"""The codebook's statistics are those of all processes; with a single one these change nothing."""

import torch
import torch.distributed as dist

__all__ = ["mean_over_ranks", "random_rows", "sum_over_ranks"]


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The sum of every rank's tensor, on every rank; without gradient."""
    if _alone():
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


def mean_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The mean of every rank's tensor, with the gradient of this rank's part.

    Data-parallel training averages gradients over the ranks, and the average of the parts'
    gradients is the mean's.
    """
    if _alone():
        return values
    mean = sum_over_ranks(values) / dist.get_world_size()
    return mean + (values - values.detach())


def random_rows(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws rows without replacement, the same ones on every rank (they are the first one's).

    Args:
        rows: `(n d)`.
        count: how many; if more than n, the surplus is not `valid`.

    Returns:
        `(count d)` and `valid` `(count,)` bool.
    """
    order = torch.randperm(len(rows), device=rows.device)[:count]
    places = torch.arange(count, device=rows.device)
    drawn = rows[order[places.clamp(max=len(order) - 1)]]
    valid = places < len(order)
    if not _alone():
        dist.broadcast(drawn, src=0)
        valid = valid.to(torch.uint8)
        dist.broadcast(valid, src=0)
        valid = valid.bool()
    return drawn, valid


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())
