"""Finite scalar quantization: each channel is rounded to one of a few levels.

Mentzer et al. 2023, "Finite Scalar Quantization: VQ-VAE Made Simple".
"""

from collections.abc import Sequence
from math import prod
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Len

from taming.quantizers.gradient import straight_through
from taming.quantizers.interface import Quantizer

__all__ = ["FiniteScalarQuantizer"]


class FiniteScalarQuantizer(Quantizer):
    """Bounds each channel and rounds it; the codes are the grid of all levels. Nothing is learned.

    A channel with L levels is bounded by a tanh to about (L − 1) / 2 on either side (for an even L
    shifted half a level, so that zero stays zero), rounded, and divided by ⌊L / 2⌋ into [−1, 1]
    (appendix A.1 of the paper; the shift is the tanh's exact inverse). There are no losses.

    Args:
        levels: of each of up to 32 channels, 3 or more; the paper's for 1000 codes are 8, 5, 5, 5.
            Their number is the `codebook_dim`, their product the `codebook_size`.
    """

    advice: ClassVar[str] = "Use fewer or smaller model.quantizer.levels."

    def __init__(self, *, levels: Annotated[Sequence[Annotated[int, Ge(3)]], Len(1, 32)]) -> None:
        super().__init__()
        self.codebook_dim = len(levels)
        self.codebook_size = prod(levels)
        self.levels: torch.Tensor
        self.place_values: torch.Tensor  # an index is a number whose first digit counts ones
        place_values = [prod(levels[:channel]) for channel in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("place_values", torch.tensor(place_values), persistent=False)

    def quantize_rows(
        self, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Rounds `(n d)` latents; there are no losses."""
        bounded = self._bound(rows)  # (n d), in levels
        half = self.levels // 2
        digits = bounded.detach().round().long() + half  # (n d), 0 to L − 1
        digits = digits.clamp(min=0).minimum(self.levels - 1)  # even where a latent is NaN
        quantized = straight_through(bounded / half, self._codes(digits))
        return quantized, (digits * self.place_values).sum(1), {}

    def codes_of(self, indices: torch.Tensor) -> torch.Tensor:
        """Returns the codes `(... d)`, float32 in [−1, 1], of indices `(...)`."""
        return self._codes(indices[..., None] // self.place_values % self.levels)

    def _bound(self, rows: torch.Tensor) -> torch.Tensor:
        half_width = (self.levels - 1) * (1 + 1e-3) / 2  # a little wider: the last level is reached
        offset = 0.5 * (self.levels % 2 == 0)
        return torch.tanh(rows + torch.atanh(offset / half_width)) * half_width - offset

    def _codes(self, digits: torch.Tensor) -> torch.Tensor:
        half = self.levels // 2
        return (digits - half).float() / half
