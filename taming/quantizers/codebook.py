"""Search, initialisation and moving averages of a codebook."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def relative_distances(rows: Tensor, codebook: Tensor) -> Tensor:
    """Returns ‖z − e‖² − ‖z‖² = ‖e‖² − 2 z·e, `(n v)`, of latents `(n d)` and codes `(v d)`.

    The omitted ‖z‖² is the same for all codes of a latent and changes neither argmin nor softmax.
    """
    with full_precision():
        return torch.addmm(codebook.square().sum(1), rows, codebook.T, alpha=-2)


def distance_chunks(rows: Tensor, codebook: Tensor) -> Iterator[Tensor]:
    """Yields `relative_distances` in chunks of latents, `(n' v)`.

    A chunk has at most `CHUNK_DISTANCES` elements (but at least one latent), so that the memory of
    a search does not grow with the image. An exported graph cannot depend on the number of latents
    and has a single chunk.
    """
    if torch.compiler.is_exporting():
        yield relative_distances(rows, codebook)
        return
    for chunk in rows.split(max(1, CHUNK_DISTANCES // len(codebook))):
        yield relative_distances(chunk, codebook)


@torch.no_grad()
def nearest(rows: Tensor, codebook: Tensor) -> Tensor:
    """Returns the index `(n,)` of the code `(v d)` nearest to each latent `(n d)`."""
    return torch.cat([chunk.argmin(1) for chunk in distance_chunks(rows, codebook)])


def random_rows(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Draws rows of the first rank without replacement and returns the same ones on every rank.

    Args:
        rows: `(n d)`.
        count: number of rows; any beyond n are not `valid`.

    Returns:
        `(count d)` and `valid` `(count,)` bool.
    """
    order = torch.randperm(len(rows), device=rows.device)[:count]
    places = torch.arange(count, device=rows.device)
    sample = rows[order[places.clamp(max=len(order) - 1)]]
    valid = (places < len(order)).to(sample)
    shared = from_first_rank(torch.cat([sample, valid[:, None]], dim=1))  # one exchange
    return shared[:, :-1], shared[:, -1].bool()


@torch.no_grad()
def kmeans(
    rows: Tensor, centres: Tensor, *, spherical: bool = False, num_iterations: int = 10
) -> Tensor:
    """Runs Lloyd's algorithm: each centre moves to the mean of the rows nearest to it.

    It clusters the rows of all ranks and returns the same centres `(k d)` on every rank.

    Args:
        rows: `(n d)`, unit vectors if `spherical`.
        centres: `(k d)` initial centres, the same on every rank. A centre without rows stays.
        spherical: normalise the means, which clusters directions (Dhillon and Modha 2001, "Concept
            Decompositions for Large Sparse Text Data Using Clustering").
        num_iterations: how often the centres move.
    """
    for _ in range(num_iterations):
        indices = nearest(rows, centres)  # (n)
        counts = sum_over_ranks(count_codes(indices, len(centres)))[:, None]
        sums = sum_over_ranks(torch.zeros_like(centres).index_add_(0, indices, rows))
        means = sums / counts.clamp(min=1)
        if spherical:
            means = F.normalize(means, dim=1)
        centres = torch.where(counts > 0, means, centres)
    return centres


class CodebookAverage(nn.Module):
    """The statistics of an EMA codebook (van den Oord et al. 2017, appendix A.1).

    After each batch, in which nᵢ latents z of all ranks chose code i:

        Nᵢ ← γNᵢ + (1 − γ)nᵢ,  mᵢ ← γmᵢ + (1 − γ)Σz,  eᵢ = mᵢ / N̂ᵢ

    N̂ᵢ = (Nᵢ + ε) / (ΣN + vε) · ΣN is Laplace smoothing. It would pull an unused code to the origin.
    A code with Nᵢ of 100 ε or less, which it has moved by 1 %, therefore stays until it is used.

    Args:
        codebook: `(v d)`, the initial codes, with Nᵢ = 1.
        decay: γ.
        epsilon: ε.

    Attributes:
        sizes: Nᵢ `(v,)`.
        sums: mᵢ `(v d)`.
    """

    def __init__(self, codebook: Tensor, decay: float, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.decay = decay
        self.epsilon = epsilon
        self.sizes: Tensor
        self.sums: Tensor
        self.register_buffer("sizes", codebook.new_ones(len(codebook)))
        self.register_buffer("sums", codebook.detach().clone())

    @torch.no_grad()
    def update(
        self, rows: Tensor, indices: Tensor, counts: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Adds a batch to the averages.

        Args:
            rows: this rank's latents `(n d)`.
            indices: `(n,)`, the code of each latent.
            counts: `(v,)`, the number of latents of each code.
            codes: `(v d)`, the current codes.

        Returns:
            the new codes `(v d)`, and the counts over all ranks `(v,)`.
        """
        sums = torch.zeros_like(self.sums).index_add_(0, indices, rows.to(self.sums))
        joined = sum_over_ranks(torch.cat([sums, counts.to(sums)[:, None]], dim=1))  # one exchange
        batch_sums, counts = joined[:, :-1], joined[:, -1]
        self.sizes.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(batch_sums, 1 - self.decay)
        total = self.sizes.sum()
        smoothed = (self.sizes + self.epsilon) / (total + len(codes) * self.epsilon) * total
        alive = self.sizes > 100 * self.epsilon
        return torch.where(alive[:, None], self.sums / smoothed[:, None], codes), counts

    @torch.no_grad()
    def restart(self, is_new: Tensor, codes: Tensor) -> None:
        """Resets the statistics of new codes to one latent.

        `is_new` is `(v,)` bool; `codes` `(v d)` holds the latents at new codes.
        """
        self.sizes.masked_fill_(is_new, 1.0)
        self.sums.copy_(torch.where(is_new[:, None], codes, self.sums))
