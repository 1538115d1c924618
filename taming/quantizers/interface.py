"""The interface of every quantizer."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import nn

__all__ = ["Quantizer", "QuantizerOutput", "Size", "count_codes"]

Size = Annotated[int, Ge(1)]


@dataclass
class QuantizerOutput:
    """What a quantizer returns, in the same shapes in training and evaluation.

    Attributes:
        quantized: `(b d h w)`; carries the gradient to the encoder.
        indices: `(b h w)` int64.
        losses: scalars by name, each already times its weight; may be empty.
        code_counts: `(codebook_size,)` int64, how often this batch chose each code.
    """

    quantized: torch.Tensor
    indices: torch.Tensor
    losses: dict[str, torch.Tensor]
    code_counts: torch.Tensor

    @property
    def loss(self) -> torch.Tensor:
        """The sum of `losses`, 0 if there are none."""
        return sum(self.losses.values(), start=self.quantized.new_zeros(()))


class Quantizer(nn.Module):
    """Replaces each latent by a code.

    A quantizer defines `quantize_rows` and `codes_of`; here is what they share.

    Attributes:
        codebook_size: number of codes.
        codebook_dim: width d of latents and codes.
        advice: what a user can change when few codes are in use.
        training_settings: names of the arguments that change how the codes are trained and not what
            they are: fine-tuning may change them.
    """

    advice: ClassVar[str] = "Use fewer codes."
    training_settings: ClassVar[tuple[str, ...]] = ()

    codebook_size: int
    codebook_dim: int

    def forward(self, latents: torch.Tensor) -> QuantizerOutput:
        """Quantizes `(b d h w)` latents of any float type, in float32.

        In evaluation mode it is deterministic and has no side effects, and ranks do not
        communicate: each may call it as often as it needs.
        """
        b, d, h, w = latents.shape
        with torch.autocast(latents.device.type, enabled=False):
            rows = latents.float().permute(0, 2, 3, 1).reshape(-1, d)
            quantized, indices, losses = self.quantize_rows(rows)
            counts = count_codes(indices, self.codebook_size)
        # in the latents' memory format: else all that follows would take over this view's
        memory_format = torch.contiguous_format if latents.is_contiguous() else torch.channels_last
        return QuantizerOutput(
            quantized=quantized.reshape(b, h, w, d)
            .permute(0, 3, 1, 2)
            .contiguous(memory_format=memory_format),
            indices=indices.reshape(b, h, w),
            losses=losses,
            code_counts=counts,
        )

    def lookup(self, indices: torch.Tensor) -> torch.Tensor:
        """Returns the codes `(b d h w)` of indices `(b h w)`: `quantized` in evaluation mode."""
        return self.codes_of(indices).permute(0, 3, 1, 2).contiguous()

    def set_step(self, step: int) -> None:
        """Sets the number of finished steps, for quantizers with a schedule.

        The training calls it before each batch, so a resumed run does what an uninterrupted one
        would.
        """

    def quantize_rows(
        self, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Returns `(n d)` quantized, `(n,)` indices and losses of `(n d)` float32 latents."""
        raise NotImplementedError

    def codes_of(self, indices: torch.Tensor) -> torch.Tensor:
        """Returns the codes `(... d)`, float32, of indices `(...)`."""
        raise NotImplementedError


def count_codes(indices: torch.Tensor, codebook_size: int) -> torch.Tensor:
    """Counts each code: `torch.bincount` without its wait for the GPU."""
    counts = indices.new_zeros(codebook_size)
    return counts.scatter_add_(0, indices, torch.ones_like(indices))
