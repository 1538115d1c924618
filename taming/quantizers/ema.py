"""Codes as moving averages of the latents that choose them."""

import torch
from torch import nn

from taming.ranks import sum_over_ranks

__all__ = ["CodebookAverage"]


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
    ) -> torch.Tensor:
        """Adds a batch.

        Args:
            rows: this rank's latents `(n d)`.
            indices: the codes they chose `(n,)`.
            counts: how many chose each code, on all ranks `(v,)`.
            codes: the present ones `(v d)`.

        Returns:
            the new codes `(v d)`.
        """
        batch_sums = sum_over_ranks(torch.zeros_like(self.sums).index_add_(0, indices, rows))
        self.sizes.lerp_(counts.to(self.sizes.dtype), 1 - self.decay)
        self.sums.lerp_(batch_sums, 1 - self.decay)
        total = self.sizes.sum()
        smoothed = (self.sizes + self.epsilon) / (total + len(codes) * self.epsilon) * total
        alive = self.sizes > 100 * self.epsilon
        return torch.where(alive[:, None], self.sums / smoothed[:, None], codes)

    @torch.no_grad()
    def restart(self, moved: torch.Tensor, codes: torch.Tensor) -> None:
        """Begins anew where `moved` `(v,)` bool, at `codes` `(v d)`, as after one latent."""
        self.sizes.masked_fill_(moved, 1.0)
        self.sums.copy_(torch.where(moved[:, None], codes, self.sums))
