"""What every quantizer takes and returns."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn

from taming.errors import UserError

__all__ = ["Quantizer", "QuantizerOutput", "check_choice", "check_sizes", "count_codes"]


@dataclass
class QuantizerOutput:
    """The same fields and shapes in training and evaluation.

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
        """The quantizer's loss: the sum of `losses`, 0 if there are none."""
        return sum(self.losses.values(), start=self.quantized.new_zeros(()))


class Quantizer(nn.Module):
    """Replaces each latent by a code.

    A quantizer defines `quantize_rows` and `codes_of`; here is what they share.

    Attributes:
        codebook_size: number of codes.
        codebook_dim: width d of latents and codes.
    """

    codebook_size: int
    codebook_dim: int

    def forward(self, latents: torch.Tensor) -> QuantizerOutput:
        """`(b d h w)` latents of any float type; all that follows is in float32.

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
        """`(b h w)` int64 to `(b d h w)` float32: the `quantized` of evaluation mode."""
        return self.codes_of(indices).permute(0, 3, 1, 2).contiguous()

    def set_step(self, step: int) -> None:
        """Tells a quantizer that follows the steps how many are finished; others ignore it.

        The training calls it before each batch, so a resumed run does what an uninterrupted one
        would.
        """

    def quantize_rows(
        self, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """`(n d)` float32 latents to `(n d)` quantized, `(n,)` indices and the losses by name."""
        raise NotImplementedError

    def codes_of(self, indices: torch.Tensor) -> torch.Tensor:
        """`(...)` int64 to their codes `(... d)`, float32."""
        raise NotImplementedError


def check_sizes(codebook_size: int, codebook_dim: int) -> None:
    """Raises a `UserError` unless both are at least 1."""
    for name, size in (("codebook_size", codebook_size), ("codebook_dim", codebook_dim)):
        if size < 1:
            raise UserError(f"quantizer: {name} must be at least 1, not {size}.")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raises a `UserError` unless the value of this setting is one of the choices."""
    if value not in choices:
        raise UserError(f"quantizer: {name} is one of {', '.join(choices)}, not {value!r}.")


def count_codes(indices: torch.Tensor, codebook_size: int) -> torch.Tensor:
    """`(n,)` to `(codebook_size,)` int64; unlike `torch.bincount` it does not wait for the GPU."""
    counts = indices.new_zeros(codebook_size)
    return counts.scatter_add_(0, indices, torch.ones_like(indices))
