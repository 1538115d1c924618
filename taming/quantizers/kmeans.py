"""k-means clustering, to start a codebook from data."""

import torch
import torch.nn.functional as F

from taming.quantizers.interface import count_codes
from taming.quantizers.search import nearest
from taming.ranks import sum_over_ranks

__all__ = ["kmeans"]


@torch.no_grad()
def kmeans(
    rows: torch.Tensor, centres: torch.Tensor, *, spherical: bool = False, num_iterations: int = 10
) -> torch.Tensor:
    """Lloyd's algorithm: each centre moves to the mean of the rows nearest to it.

    On several ranks the rows are those of all, and every rank has the same result.

    Args:
        rows: `(n d)`, unit vectors if `spherical`.
        centres: `(k d)` to start from, the same on every rank. One without rows stays.
        spherical: directions are clustered: the means are normalised (Dhillon and Modha 2001,
            "Concept Decompositions for Large Sparse Text Data Using Clustering").
        num_iterations: how often the centres move.

    Returns:
        `(k d)`.
    """
    for _ in range(num_iterations):
        indices = nearest(rows, centres)
        counts = sum_over_ranks(count_codes(indices, len(centres)))[:, None]
        sums = sum_over_ranks(torch.zeros_like(centres).index_add_(0, indices, rows))
        means = sums / counts.clamp(min=1)
        if spherical:
            means = F.normalize(means, dim=1)
        centres = torch.where(counts > 0, means, centres)
    return centres
