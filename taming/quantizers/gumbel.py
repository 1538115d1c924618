"""Gumbel-softmax quantization: codes are drawn, and the draw has a gradient.

Jang et al. 2017, "Categorical Reparameterization with Gumbel-Softmax"; for images Ramesh et al.
2021, "Zero-Shot Text-to-Image Generation" (DALL-E), §2.1.
"""

import math
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import nn

from taming.quantizers.interface import Quantizer, Size
from taming.runtime.contexts import full_precision

__all__ = ["GumbelQuantizer"]


class GumbelQuantizer(Quantizer):
    """Draws a code from logits that are a projection of the latent; evaluation takes the largest.

    Training adds Gumbel noise g to the logits l: argmax(l + g) is a draw from softmax(l), and
    softmax((l + g) / τ) is its differentiable relaxation. Hard draws use the code that was drawn,
    with the relaxation's gradient.

    The loss is `kl_weight` · KL(softmax(l) ‖ uniform) per latent, the mean over latents.

    Args:
        codebook_size: number of codes.
        codebook_dim: width of latents and codes.
        kl_weight: of the loss (5e-4 in CompVis' f8 model).
        hard: draw codes; otherwise training uses the relaxation's mixtures of codes. Evaluation is
            always hard.
        temperature_start: τ at step 0.
        temperature_end: τ from `temperature_steps` on (DALL-E's 1/16 is the default).
        temperature_steps: length of the schedule in steps; a good value is the length of the run.
            Part of the model: a run that is lengthened keeps the schedule. Fine-tuning follows its
            own, from its step 0 on.
        temperature_schedule: `"cosine"`, `"linear"` or `"constant"` (τ stays at its start).

    Attributes:
        temperature: τ now, a scalar tensor; a function of the step, so it is not saved.
    """

    advice: ClassVar[str] = (
        "Use a larger model.quantizer.kl_weight, a higher model.quantizer.temperature_end, or a "
        "smaller model.quantizer.codebook_size."
    )
    training_settings: ClassVar[tuple[str, ...]] = (
        "kl_weight", "hard", "temperature_start", "temperature_end", "temperature_steps",
        "temperature_schedule",
    )  # fmt: skip

    def __init__(
        self,
        *,
        codebook_size: Size,
        codebook_dim: Size,
        kl_weight: Annotated[float, Ge(0)] = 5e-4,
        hard: bool = True,
        temperature_start: Annotated[float, Gt(0)] = 1.0,
        temperature_end: Annotated[float, Gt(0)] = 1 / 16,
        temperature_steps: Size = 150_000,
        temperature_schedule: Literal["cosine", "linear", "constant"] = "cosine",
    ) -> None:
        super().__init__()
        self.codebook_size = codebook_size
        self.codebook_dim = codebook_dim
        self.kl_weight = kl_weight
        self.hard = hard
        self.temperature_start = temperature_start
        self.temperature_end = temperature_end
        self.temperature_steps = temperature_steps
        self.temperature_schedule = temperature_schedule
        self.projection = nn.Linear(codebook_dim, codebook_size)
        self.codebook = nn.Parameter(torch.randn(codebook_size, codebook_dim))
        self.temperature: torch.Tensor
        self.register_buffer("temperature", torch.tensor(temperature_start), persistent=False)

    def set_step(self, step: int) -> None:
        """Sets the temperature to that of the step after `step` finished ones."""
        self.temperature.fill_(self.temperature_at(step))

    def temperature_at(self, step: int) -> float:
        """Returns τ after `step` finished steps."""
        start, end = self.temperature_start, self.temperature_end
        progress = min(1.0, step / self.temperature_steps)
        if self.temperature_schedule == "constant":
            return start
        if self.temperature_schedule == "linear":
            return start + (end - start) * progress
        return end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))

    def code_logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Projects `(n d)` latents to `(n v)` logits, in float32."""
        with full_precision():
            return F.linear(rows, self.projection.weight.float(), self.projection.bias.float())

    def quantize_rows(
        self, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Draws codes for `(n d)` latents in training; evaluation takes the likeliest."""
        logits = self.code_logits(rows)  # (n v)
        log_probabilities = logits.log_softmax(1)
        divergence = log_probabilities.exp() * (log_probabilities + math.log(self.codebook_size))
        losses = {"kl_loss": self.kl_weight * divergence.sum(1).mean()}
        noisy = logits - _exponential_like(logits).log() if self.training else logits
        indices = noisy.argmax(1)
        relaxed = (noisy / self.temperature).softmax(1)
        codebook = self.codebook.float()
        if self.training and not self.hard:
            return relaxed @ codebook, indices, losses
        # The value is the code's; the gradients are those of (one_hot + relaxed − sg[relaxed]) @ E.
        mixture = relaxed @ codebook.detach()
        quantized = F.embedding(indices, codebook) + (mixture - mixture.detach())
        return quantized, indices, losses

    def codes_of(self, indices: torch.Tensor) -> torch.Tensor:
        """Returns the codes `(... d)`, float32, of indices `(...)`."""
        return F.embedding(indices, self.codebook.float())


def _exponential_like(values: torch.Tensor) -> torch.Tensor:
    # −log of it is Gumbel noise; the smallest normal number keeps the logarithm finite
    draws = torch.empty_like(values).exponential_()
    return draws.clamp(min=torch.finfo(draws.dtype).tiny)
