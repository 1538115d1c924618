"""Finite scalar quantization rounds each channel to one of a few levels.

Mentzer et al. 2023, "Finite Scalar Quantization: VQ-VAE Made Simple".
"""

from collections.abc import Sequence
from math import prod
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Len
from torch import Tensor

from taming.quantizers.gradient import straight_through
from taming.quantizers.interface import QuantizedRows, Quantizer

__all__ = ["FiniteScalarQuantizer"]


class FiniteScalarQuantizer(Quantizer):
    """Bounds each channel and rounds it. The codes are the grid of all levels; nothing is learned.

    A tanh bounds a channel with L levels to about ±(L − 1) / 2. An even L needs a shift by half a
    level, so that zero stays zero. Rounding and division by ⌊L / 2⌋ give a code in [−1, 1]
    (appendix A.1 of the paper, with the exact inverse of the tanh as the shift).

    Args:
        levels: number of levels, 3 or more, of each of up to 32 channels. The paper uses 8, 5, 5, 5
            for 1000 codes. The `codebook_dim` is the number of channels, the `codebook_size` the
            product of their levels.
    """

    advice: ClassVar[str] = "Use fewer or smaller model.quantizer.levels."

    def __init__(self, *, levels: Annotated[Sequence[Annotated[int, Ge(3)]], Len(1, 32)]) -> None:
        super().__init__()
        self.codebook_dim = len(levels)
        self.codebook_size = prod(levels)
        self.levels: Tensor
        self.place_values: Tensor  # of an index's digits, the first being the ones
        place_values = [prod(levels[:channel]) for channel in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("place_values", torch.tensor(place_values), persistent=False)

    def quantize_rows(self, rows: Tensor) -> QuantizedRows:
        """Rounds `(n d)` latents, without losses."""
        bounded = self._bound(rows)  # (n d), in levels
        half = self.levels // 2
        digits = bounded.detach().round().long() + half  # (n d), 0 to L − 1
        digits = digits.clamp(min=0).minimum(self.levels - 1)  # NaN latents too
        quantized = straight_through(bounded / half, self._codes(digits))
        return quantized, (digits * self.place_values).sum(1), {}

    def codes_of(self, indices: Tensor) -> Tensor:
        """Returns the codes `(... d)`, float32 in [−1, 1], of indices `(...)`."""
        return self._codes(indices[..., None] // self.place_values % self.levels)

    def _bound(self, rows: Tensor) -> Tensor:
        half_width = (self.levels - 1) * (1 + 1e-3) / 2  # wider, to reach the last level
        offset = 0.5 * (self.levels % 2 == 0)
        return torch.tanh(rows + torch.atanh(offset / half_width)) * half_width - offset

    def _codes(self, digits: Tensor) -> Tensor:
        half = self.levels // 2
        return (digits - half).float() / half
