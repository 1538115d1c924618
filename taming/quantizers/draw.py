"""Random latents for codes to start at."""

import torch

from taming.ranks import from_first_rank

__all__ = ["random_rows"]


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
    valid = (places < len(order)).to(torch.uint8)  # backends need not know bool
    return from_first_rank(drawn), from_first_rank(valid).bool()
