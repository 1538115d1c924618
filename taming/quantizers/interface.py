"""What every quantizer takes and returns."""

from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Quantizer", "QuantizerOutput"]


@dataclass
class QuantizerOutput:
    """The same fields and shapes in training and evaluation.

    Attributes:
        quantized: `(b d h w)`; carries the gradient to the encoder.
        indices: `(b h w)` int64.
        losses: scalars by name, each already times its weight; their sum is the quantizer's loss.
        code_counts: `(codebook_size,)` int64, how often this batch chose each code.
    """

    quantized: torch.Tensor
    indices: torch.Tensor
    losses: dict[str, torch.Tensor]
    code_counts: torch.Tensor


class Quantizer(nn.Module):
    """Replaces each latent by a code.

    Attributes:
        codebook_size: number of codes.
        codebook_dim: width d of latents and codes.
    """

    codebook_size: int
    codebook_dim: int

    def forward(self, latents: torch.Tensor) -> QuantizerOutput:
        """`(b d h w)` latents of any float type; the search is in float32."""
        raise NotImplementedError

    def lookup(self, indices: torch.Tensor) -> torch.Tensor:
        """`(b h w)` int64 to `(b d h w)`: what `forward` returns as `quantized` for them."""
        raise NotImplementedError
