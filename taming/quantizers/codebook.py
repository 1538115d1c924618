"""Search, initialisation and gradient-free updates of a codebook."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from taming.quantizers.interface import count_codes
from taming.runtime.contexts import full_precision
from taming.runtime.process_group import from_first_rank, sum_over_ranks

__all__ = [
    "CodebookAverage",
    "distance_chunks",
    "kmeans",
    "nearest",
    "random_rows",
    "relative_distances",
]

CHUNK_DISTANCES = 2**26  # 256 MiB in float32


def relative_distances(rows: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
    """Returns ‖z − e‖² − ‖z‖² = ‖e‖² − 2 z·e, `(n v)`, of latents `(n d)` and codes `(v d)`.

    What is left out is the same for all codes of a latent: neither argmin nor softmax sees it.
    """
    with full_precision():
        return torch.addmm(codebook.square().sum(1), rows, codebook.T, alpha=-2)


def distance_chunks(rows: torch.Tensor, codebook: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields `relative_distances` in chunks of latents, `(n' v)`.

    A chunk has at most `CHUNK_DISTANCES` elements (but at least one latent), so that the memory of
    a search does not grow with the image. An exported graph, which cannot depend on the number of
    latents, has a single chunk.
    """
    if torch.compiler.is_exporting():
        yield relative_distances(rows, codebook)
        return
    for chunk in rows.split(max(1, CHUNK_DISTANCES // len(codebook))):
        yield relative_distances(chunk, codebook)


@torch.no_grad()
def nearest(rows: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
    """Returns the index `(n,)` of the code `(v d)` nearest to each latent `(n d)`."""
    return torch.cat([chunk.argmin(1) for chunk in distance_chunks(rows, codebook)])


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
    valid = (places < len(order)).to(drawn)
    shared = from_first_rank(torch.cat([drawn, valid[:, None]], dim=1))  # in one exchange
    return shared[:, :-1], shared[:, -1].bool()


@torch.no_grad()
def kmeans(
    rows: torch.Tensor, centres: torch.Tensor, *, spherical: bool = False, num_iterations: int = 10
) -> torch.Tensor:
    """Runs Lloyd's algorithm: each centre moves to the mean of the rows nearest to it.

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


class CodebookAverage(nn.Module):
    """The statistics of an EMA codebook (van den Oord et al. 2017, appendix A.1).

    After each batch, with nᵢ latents that chose code i, of all ranks:
    Nᵢ ← γNᵢ + (1 − γ)nᵢ, mᵢ ← γmᵢ + (1 − γ)Σz, and the code is mᵢ / Nᵢ with Laplace smoothing,
    N̂ᵢ = (Nᵢ + ε) / (ΣN + vε) · ΣN. A code whose Nᵢ has faded to 100 ε stays where it is until it
    is used again: the smoothing, which has moved it by 1% by then, would let it sink to the origin.

    Args:
        codebook: `(v d)`, the codes to start from, with Nᵢ = 1.
        decay: γ.
        epsilon: ε.

    Attributes:
        sizes: Nᵢ `(v,)`.
        sums: mᵢ `(v d)`.
    """

    def __init__(self, codebook: torch.Tensor, decay: float, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.decay = decay
        self.epsilon = epsilon
        self.sizes: torch.Tensor
        self.sums: torch.Tensor
        self.register_buffer("sizes", codebook.new_ones(len(codebook)))
        self.register_buffer("sums", codebook.detach().clone())

    @torch.no_grad()
    def update(
        self, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor, codes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds a batch to the averages.

        Args:
            rows: this rank's latents `(n d)`.
            indices: the codes they chose `(n,)`.
            counts: how many chose each code `(v,)`.
            codes: the present ones `(v d)`.

        Returns:
            the new codes `(v d)`, and the counts of all ranks `(v,)`.
        """
        sums = torch.zeros_like(self.sums).index_add_(0, indices, rows)
        joined = sum_over_ranks(torch.cat([sums, counts.to(sums)[:, None]], dim=1))  # one exchange
        batch_sums, counts = joined[:, :-1], joined[:, -1]
        self.sizes.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(batch_sums, 1 - self.decay)
        total = self.sizes.sum()
        smoothed = (self.sizes + self.epsilon) / (total + len(codes) * self.epsilon) * total
        alive = self.sizes > 100 * self.epsilon
        return torch.where(alive[:, None], self.sums / smoothed[:, None], codes), counts

    @torch.no_grad()
    def restart(self, moved: torch.Tensor, codes: torch.Tensor) -> None:
        """Resets the statistics of the moved codes to those of a single latent.

        `moved` is `(v,)` bool, `codes` `(v d)` are where they are now.
        """
        self.sizes.masked_fill_(moved, 1.0)
        self.sums.copy_(torch.where(moved[:, None], codes, self.sums))
