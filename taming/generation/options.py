"""How to sample: what the commands set and `ImageGenerator` takes, declared once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from taming.errors import UserError

__all__ = ["GUIDANCE_SCHEDULES", "Guidance", "SamplingOptions", "check_grid_size"]

GUIDANCE_SCHEDULES = ("constant", "linear", "power_cosine")


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance (Ho & Salimans 2022): the scale of each token of an image.

    For logits the scale is that of LlamaGen (Sun et al. 2024): 1 is the model as it is trained, 0
    the model without condition. With s the scale and i the token's number among the n of the image,
    counted from 0:

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

    Raises:
        UserError: if a value is out of range.
    """

    scale: float = 1.0  # at least 0; 1 is no guidance, more follows the condition more strongly
    schedule: str = "constant"  # one of GUIDANCE_SCHEDULES
    power: float = 1.0  # more than 0; only power_cosine uses it
    interval: Sequence[float] = (0.0, 1.0)  # (start, end) with 0 <= start < end <= 1

    def __post_init__(self) -> None:
        interval = tuple(self.interval)  # a list, where it comes from a config
        if not 0 <= self.scale < math.inf:
            raise UserError(f"guidance_scale is {self.scale} and must be at least 0, and finite.")
        if self.schedule not in GUIDANCE_SCHEDULES:
            raise UserError(
                f"guidance_schedule is {self.schedule!r} and must be one of "
                f"{', '.join(GUIDANCE_SCHEDULES)}."
            )
        if not 0 < self.power < math.inf:
            raise UserError(f"guidance_power is {self.power} and must be more than 0, and finite.")
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
        changed = [f"guidance_{n}" for n in unused if getattr(self, n) != getattr(Guidance, n)]
        return [f"no effect of {' and '.join(changed)}: {why}."] if changed else []

    def scale_at(self, number: int, num_tokens: int) -> float:
        """Returns the scale of one token, by its number from 0 to `num_tokens` - 1."""
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
        scales = [self.scale_at(number, num_tokens) for number in range(num_tokens)]
        return torch.tensor(scales, dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn, whatever the model and its condition.

    Raises:
        UserError: if a value is out of range.
    """

    temperature: float = 1.0  # more than 0; below 1 more of the probable, above 1 less
    top_k: int | None = None  # draw among this many most probable tokens; None: all
    top_p: float | None = None  # among the most probable tokens with this probability together
    guidance: Guidance = field(default_factory=Guidance)  # how strongly the condition is followed
    greedy: bool = False  # the most probable token each time; the four options above but guidance,
    # and the seed, have no effect
    seed: int | None = None  # not negative; None: taken from PyTorch's global random state
    # (height, width) in codes of larger images, drawn through a sliding window of the trained size;
    # one number for a square; None: the trained size
    grid_size: int | Sequence[int] | None = None
    stride: int | None = None  # of that window, see `plan_windows`
    # compile the step: slow to start, then faster; the same tokens up to rounding. Batches are
    # filled up to the batch size, for which it is compiled.
    compile: bool = False
    batch_size: int | None = None  # images drawn at once, which bounds the memory; None: at most 64

    def __post_init__(self) -> None:
        if not self.greedy and not self.temperature > 0:
            raise UserError(
                f"temperature is {self.temperature} and must be more than 0; for the most probable "
                "tokens use greedy=true."
            )
        if self.top_k is not None and (self.top_k < 1 or self.top_k != int(self.top_k)):
            raise UserError(
                f"top_k is {self.top_k} and must be a whole number, 1 or more; for no limit leave "
                "it out (null)."
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p} and must be more than 0 and at most 1.")
        for name, least in (("seed", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} is {value} and must be at least {least}.")
        if self.grid_size is not None:
            object.__setattr__(self, "grid_size", check_grid_size(self.grid_size))

    @classmethod
    def of(cls, options: Self | None, *arguments: Any) -> Self:
        """Returns the options, or those that the six arguments of `ImageGenerator.sample` make.

        Raises:
            UserError: if there are both.
        """
        temperature, top_k, top_p, guidance_scale, greedy, seed = arguments
        made = cls(temperature=temperature, top_k=top_k, top_p=top_p, greedy=greedy, seed=seed,
                   guidance=Guidance(guidance_scale))  # fmt: skip
        if options is not None and made != cls():
            raise UserError("give temperature, seed and so on in the options, not beside them.")
        return options or made


def check_grid_size(grid_size: int | Sequence[int]) -> tuple[int, int]:
    """Returns (height, width), for one number a square; raises a `UserError` for anything else."""
    sides = grid_size if isinstance(grid_size, Sequence) else (grid_size, grid_size)
    if len(sides) != 2 or min(sides) < 1 or any(side != int(side) for side in sides):
        raise UserError(
            f"grid_size is {grid_size} and must be (height, width) in codes, or one whole number "
            "for a square."
        )
    return int(sides[0]), int(sides[1])
