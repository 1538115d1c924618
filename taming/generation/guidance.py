"""Classifier-free guidance: how strongly each token follows the condition.

Ho & Salimans 2022, "Classifier-Free Diffusion Guidance"; for logits the scale is that of LlamaGen
(Sun et al. 2024): 1 is the model as it is trained, 0 the model without condition.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taming.errors import UserError

__all__ = ["GUIDANCE_SCHEDULES", "Guidance", "guide"]

GUIDANCE_SCHEDULES = ("constant", "linear", "power_cosine")


@dataclass(frozen=True)
class Guidance:
    """The scale of each token of an image.

    With s the scale and i the token's number among the n of the image, counted from 0:

    - `constant`: s.
    - `linear`: 1 + (s - 1)·i / (n - 1), from 1 at the first token to s at the last; a single
      token gets 1. (Muse, Chang et al. 2023, lets the scale grow linearly.)
    - `power_cosine`: 1 + (s - 1)·(1 - cos(π·(i / n)^power)) / 2. It starts at 1 and would be s for
      token n, just after the last one, as RAR has it (Yu et al. 2024, "Randomized Autoregressive
      Visual Generation"), so that its published scales and powers hold here; from MDT (Gao et al.
      2023, "Masked Diffusion Transformer"). A greater power keeps the scale low for longer.

    Outside the interval the scale is 1: a token is inside if start <= i / n < end, as fractions of
    the image, so that an end of 1 includes the last token. (Kynkäänniemi et al. 2024, "Applying
    Guidance in a Limited Interval", for the noise levels of diffusion.)

    Args:
        scale: at least 0; 1 is no guidance, more follows the condition more strongly.
        schedule: one of `GUIDANCE_SCHEDULES`.
        power: more than 0; only `power_cosine` uses it.
        interval: (start, end) with 0 <= start < end <= 1.

    Raises:
        UserError: if a value is out of range.
    """

    scale: float = 1.0
    schedule: str = "constant"
    power: float = 1.0
    interval: Sequence[float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if not 0 <= self.scale < math.inf:
            raise UserError(f"guidance_scale is {self.scale} and must be at least 0, and finite.")
        if self.schedule not in GUIDANCE_SCHEDULES:
            raise UserError(
                f"guidance_schedule is {self.schedule!r} and must be one of "
                f"{', '.join(GUIDANCE_SCHEDULES)}."
            )
        if not 0 < self.power < math.inf:
            raise UserError(f"guidance_power is {self.power} and must be more than 0, and finite.")
        # a list, where it comes from a config
        interval = tuple(self.interval) if isinstance(self.interval, Sequence) else (self.interval,)
        if len(interval) != 2 or not 0 <= interval[0] < interval[1] <= 1:
            raise UserError(
                f"guidance_interval is {list(interval)} and must be two fractions of the image, "
                "[start, end] with 0 <= start < end <= 1."
            )
        object.__setattr__(self, "interval", interval)

    @property
    def is_off(self) -> bool:
        """Whether the scale is 1 for every token, so that no unconditional logits are needed."""
        return self.scale == 1

    def notes(self, num_tokens: int, num_given: int = 0) -> list[str]:
        """Says in sentences what has no effect on images of so many tokens, some of them given."""
        unused, why = [], "a scale of 1 is no guidance"
        if self.is_off:
            unused = ["schedule", "power", "interval"]
        elif (self.scales(num_tokens)[num_given:] == 1).all():
            return [
                "no effect of guidance: by guidance_schedule and guidance_interval the scale is 1 "
                "for every token that is drawn."
            ]
        elif self.schedule != "power_cosine":
            unused, why = ["power"], "only guidance_schedule=power_cosine uses it"
        default = Guidance()
        given = [f"guidance_{n}" for n in unused if getattr(self, n) != getattr(default, n)]
        return [f"no effect of {' and '.join(given)}: {why}."] if given else []

    def scale_at(self, number: int, num_tokens: int) -> float:
        """Returns the scale of one token, by its number from 0 to `num_tokens` - 1."""
        assert 0 <= number < num_tokens
        start, end = self.interval
        # a quotient is rounded as the fraction that a user writes; start * num_tokens would not be
        if not start <= number / num_tokens < end:
            return 1.0
        if self.schedule == "constant":
            return float(self.scale)
        if self.schedule == "linear":
            growth = number / max(num_tokens - 1, 1)
        else:
            growth = (1 - math.cos(math.pi * (number / num_tokens) ** self.power)) / 2
        return 1 + (self.scale - 1) * growth

    def scales(self, num_tokens: int) -> Tensor:
        """Returns the scales of all tokens, `(num_tokens,)` float32 on the CPU."""
        return torch.tensor(
            [self.scale_at(number, num_tokens) for number in range(num_tokens)], dtype=torch.float32
        )


def guide(conditional: Tensor, unconditional: Tensor, scale: float | Tensor) -> Tensor:
    """Returns guided logits: unconditional + scale·(conditional - unconditional), in float32.

    Computed as conditional + (scale - 1)·(conditional - unconditional), the same but that finite
    logits come out of a scale of 1 exactly as they are, not up to rounding. A scale gives the same
    numbers as a float and as a tensor.

    Args:
        conditional: `(b v)` logits of the model that sees the condition.
        unconditional: `(b v)` logits of the model that sees none.
        scale: a number, or a tensor of one element (on the logits' device, or of no dimension).

    Returns:
        `(b v)` float32.
    """
    conditional, unconditional = conditional.float(), unconditional.float()
    scale = torch.as_tensor(scale, dtype=torch.float32)
    return conditional + (scale - 1) * (conditional - unconditional)
