"""Gumbel-softmax quantization draws codes, and the draw has a gradient.

Jang et al. 2017, "Categorical Reparameterization with Gumbel-Softmax"; for images Ramesh et al.
2021, "Zero-Shot Text-to-Image Generation" (DALL-E), section 2.1.
"""

import math
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from taming.quantizers.interface import QuantizedRows, Quantizer, Size
from taming.runtime.contexts import full_precision
from taming.runtime.dtypes import at_least_float32

__all__ = ["GumbelQuantizer"]


class GumbelQuantizer(Quantizer):
    """Projects the latent to logits and draws a code; evaluation takes the code of largest logit.

    Training adds Gumbel noise g to the logits l. Then argmax(l + g) is a draw from softmax(l), and
    softmax((l + g) / τ) is its differentiable relaxation. A hard draw uses the drawn code and the
    relaxation's gradient.

    The loss is `kl_weight` times the mean over latents of KL(softmax(l) ‖ uniform).

    Args:
        codebook_size: number of codes.
        codebook_dim: width of latents and codes.
        kl_weight: weight of the loss (5e-4 in CompVis' f8 model).
        hard: draw codes; False trains with the relaxation's mixtures of codes. Evaluation is always
            hard.
        temperature_start: τ at step 0.
        temperature_end: τ from `temperature_steps` on (1/16 as in DALL-E).
        temperature_steps: length of the schedule in steps; a good value is the length of the run.
            A longer second run keeps this schedule. Fine-tuning starts its own at its step 0.
        temperature_schedule: `"cosine"`, `"linear"` or `"constant"` (τ stays at its start).

    Attributes:
        temperature: the current τ, a scalar tensor. It is a function of the step and not saved.
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
        self.temperature: Tensor
        self.register_buffer("temperature", torch.tensor(temperature_start), persistent=False)

    def set_step(self, step: int) -> None:
        """Sets the temperature for the step after `step` finished steps."""
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

    def code_logits(self, rows: Tensor) -> Tensor:
        """Projects `(n d)` latents to `(n v)` logits, in the latents' dtype."""
        with full_precision():
            weight, bias = self.projection.weight.to(rows), self.projection.bias.to(rows)
            return F.linear(rows, weight, bias)

    def quantize_rows(self, rows: Tensor) -> QuantizedRows:
        """Draws codes for `(n d)` latents in training; evaluation takes the most probable."""
        logits = self.code_logits(rows)  # (n v)
        log_probabilities = logits.log_softmax(1)  # (n v)
        divergence = log_probabilities.exp() * (log_probabilities + math.log(self.codebook_size))
        losses = {"kl_loss": self.kl_weight * divergence.sum(1).mean()}
        noisy = logits - _exponential_like(logits).log() if self.training else logits
        indices = noisy.argmax(1)  # (n)
        relaxed = (noisy / self.temperature).softmax(1)  # (n v)
        codebook = self.codebook.to(rows)
        if self.training and not self.hard:
            return relaxed @ codebook, indices, losses
        # The value is the drawn code. The gradient belongs to (one_hot + relaxed − sg[relaxed]) E.
        mixture = relaxed @ codebook.detach()  # (n d)
        quantized = F.embedding(indices, codebook) + (mixture - mixture.detach())
        return quantized, indices, losses

    def codes_of(self, indices: Tensor) -> Tensor:
        """Returns the codes `(... d)` of indices `(...)`."""
        return F.embedding(indices, at_least_float32(self.codebook))


def _exponential_like(values: Tensor) -> Tensor:
    # −log gives Gumbel noise; the smallest normal number keeps it finite
    draws = torch.empty_like(values).exponential_()
    return draws.clamp(min=torch.finfo(draws.dtype).tiny)
