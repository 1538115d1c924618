"""The interface of every quantizer."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from taming.runtime.dtypes import at_least_float32

__all__ = ["QuantizedRows", "Quantizer", "QuantizerOutput", "Size", "count_codes"]

Size = Annotated[int, Ge(1)]
QuantizedRows = tuple[Tensor, Tensor, dict[str, Tensor]]  # codes (n d), indices (n,), losses


@dataclass
class QuantizerOutput:
    """What a quantizer returns, in the same shapes in training and evaluation.

    Attributes:
        quantized: `(b d h w)`, with a gradient to the encoder.
        indices: `(b h w)` int64.
        losses: weighted scalars by name; may be empty.
        code_counts: `(codebook_size,)` int64, how often this batch chose each code.
    """

    quantized: Tensor
    indices: Tensor
    losses: dict[str, Tensor]
    code_counts: Tensor

    @property
    def loss(self) -> Tensor:
        """The sum of `losses`, 0 if they are empty."""
        return sum(self.losses.values(), start=self.quantized.new_zeros(()))


class Quantizer(nn.Module):
    """Replaces each latent by a code.

    A subclass defines `quantize_rows` and `codes_of`.

    Attributes:
        codebook_size: number of codes.
        codebook_dim: width d of latents and codes.
        advice: what a user can change if few codes are in use.
        training_settings: names of the arguments that affect only the training of the codes.
            Fine-tuning may change them.
    """

    advice: ClassVar[str] = "Use fewer codes."
    training_settings: ClassVar[tuple[str, ...]] = ()

    codebook_size: int
    codebook_dim: int

    def forward(self, latents: Tensor) -> QuantizerOutput:
        """Quantizes `(b d h w)` latents, in float64 if they are float64 and otherwise in float32.

        In evaluation mode it is deterministic, has no side effects and does not communicate with
        other ranks.
        """
        b, d, h, w = latents.shape
        with torch.autocast(latents.device.type, enabled=False):
            rows = at_least_float32(latents).permute(0, 2, 3, 1).reshape(-1, d)  # (b·h·w d)
            quantized, indices, losses = self.quantize_rows(rows)
            counts = count_codes(indices, self.codebook_size)
        # Without a copy in the latents' memory format, the decoder would inherit this view's.
        memory_format = torch.contiguous_format if latents.is_contiguous() else torch.channels_last
        return QuantizerOutput(
            quantized=quantized.reshape(b, h, w, d)
            .permute(0, 3, 1, 2)
            .contiguous(memory_format=memory_format),
            indices=indices.reshape(b, h, w),
            losses=losses,
            code_counts=counts,
        )

    def lookup(self, indices: Tensor) -> Tensor:
        """Returns the codes `(b d h w)` of indices `(b h w)`: `quantized` in evaluation mode."""
        return self.codes_of(indices).permute(0, 3, 1, 2).contiguous()

    def set_step(self, step: int) -> None:
        """Sets the number of finished steps, for quantizers with a schedule.

        Training calls it before each batch, so that a resumed run equals an uninterrupted one.
        """

    def quantize_rows(self, rows: Tensor) -> QuantizedRows:
        """Quantizes latents `(n d)`, float32 or float64."""
        raise NotImplementedError

    def codes_of(self, indices: Tensor) -> Tensor:
        """Returns the codes `(... d)`, float32 or float64, of indices `(...)`."""
        raise NotImplementedError


def count_codes(indices: Tensor, codebook_size: int) -> Tensor:
    """Counts each code, like `torch.bincount` but without waiting for the GPU."""
    counts = indices.new_zeros(codebook_size)
    return counts.scatter_add_(0, indices, torch.ones_like(indices))
