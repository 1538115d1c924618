"""The options of sampling, which the commands set and `ImageGenerator` takes."""

import math
from dataclasses import field
from typing import Annotated, Any, Literal, Self

import torch
from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, ConfigDict, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor

from taming.runtime.errors import UserError
from taming.tokenizer import height_and_width

__all__ = ["Guidance", "SamplingOptions"]


Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]
GridSize = Annotated[tuple[Count, Count], BeforeValidator(height_and_width)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Guidance:
    """Classifier-free guidance (Ho & Salimans 2022): the scale of each token of an image.

    A scale of 1 is the model as trained, and 0 is the model without condition, as in LlamaGen (Sun
    et al. 2024). Let s be the scale, n the number of tokens of the image, and i the token's number,
    counted from 0. The schedules are:

    - `constant`: s.
    - `linear`: 1 + (s - 1)·i / (n - 1), from 1 at the first token to s at the last token; a single
      token gets 1. In Muse (Chang et al. 2023) the scale also grows linearly.
    - `power_cosine`: 1 + (s - 1)·(1 - cos(π·(i / n)^power)) / 2, from 1 at the first token towards
      s, which token n after the last one would get. A greater power keeps the scale low for longer.
      The schedule is from MDT (Gao et al. 2023, "Masked Diffusion Transformer"). RAR (Yu et al.
      2024, "Randomized Autoregressive Visual Generation") uses this form, so its published scales
      and powers hold here.

    Outside the interval the scale is 1. A token is inside if start <= i / n < end, so an end of 1
    includes the last token. Kynkäänniemi et al. 2024, "Applying Guidance in a Limited Interval",
    propose this for the noise levels of diffusion.
    """

    scale: Annotated[float, Ge(0)] = 1.0  # 1: no guidance; above 1: follow the condition more
    schedule: Literal["constant", "linear", "power_cosine"] = "constant"
    power: Annotated[float, Gt(0)] = 1.0  # only power_cosine uses it
    interval: tuple[Share, Share] = (0.0, 1.0)  # (start, end)

    @property
    def is_off(self) -> bool:
        """Whether the scale is 1 for every token, so that no unconditional logits are needed."""
        return self.scale == 1

    def notes(self, num_tokens: int, num_given: int = 0) -> list[str]:
        """Returns a note if guidance does not affect any drawn token."""
        if self.is_off and self != Guidance():
            return [
                "guidance_schedule, guidance_power and guidance_interval have no effect, because "
                "guidance_scale=1 is no guidance."
            ]
        if not self.is_off and (self.scales(num_tokens)[num_given:] == 1).all():
            return [
                "guidance has no effect, because guidance_schedule and guidance_interval make the "
                "scale 1 for every token that is drawn."
            ]
        return []

    def scale_at(self, number: int, num_tokens: int) -> float:
        """Returns the scale of one token, by its number from 0 to `num_tokens` - 1."""
        start, end = self.interval
        # a quotient rounds like the fraction that a user writes; start * num_tokens does not
        if not start <= number / num_tokens < end:
            return 1.0
        if self.schedule == "constant":
            return float(self.scale)
        if self.schedule == "linear":
            growth = number / max(num_tokens - 1, 1)
        else:
            growth = (1 - math.cos(math.pi * (number / num_tokens) ** self.power)) / 2
        return 1 + (self.scale - 1) * growth

    def guided(self, num_tokens: int) -> range:
        """Returns the tokens from the first to the last whose scale is not 1."""
        numbers = (self.scales(num_tokens) != 1).nonzero().flatten().tolist()
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)

    def scales(self, num_tokens: int) -> Tensor:
        """Returns the scales of all tokens, `(num_tokens,)` float32 on the CPU."""
        scales = [self.scale_at(number, num_tokens) for number in range(num_tokens)]
        return torch.tensor(scales, dtype=torch.float32)


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class SamplingOptions:
    """How to draw tokens, for any model and condition.

    Raises:
        ValueError: pydantic's, if a value is not of its type or out of its range.
    """

    # below 1: more of the probable tokens; above 1: fewer; 0: only the most probable token
    temperature: Annotated[float, Ge(0)] = 1.0
    top_k: Count | None = None  # draw among the k most probable tokens; None: all
    # draw among the fewest most probable tokens whose probabilities sum to p; None: all
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    guidance: Guidance = field(default_factory=Guidance)  # how strongly to follow the condition
    greedy: bool = False  # always the most probable token, regardless of filters and seed
    seed: Annotated[int, Ge(0)] | None = None  # None: from PyTorch's global random state
    # (height, width) in codes of larger images, drawn through a sliding window of the trained size;
    # one number for a square; None: the trained size
    grid_size: GridSize | None = None
    stride: int | None = None  # of the sliding window, see `plan_windows`
    # only for models of any order: raster, a random one for each image, or halton, which spreads
    # the cells evenly; None: raster, with num_steps halton
    order: Literal["raster", "random", "halton"] | None = None
    # only for models of any order: steps for an image, which each draw several tokens, see
    # `step_ends`; None: one step for each token
    num_steps: Count | None = None
    # compile the step: slow to start, then faster, with the same tokens except for rounding. It is
    # compiled for the batch size, so the last batch is padded. auto: compile if that saves time,
    # for the number of images in this call; a program that makes many small calls decides better
    compile: bool | Literal["auto"] = False
    batch_size: Count | None = None  # images to draw at once, which bounds the memory; None: 64

    @property
    def images_at_once(self) -> int:
        """The batch size, or its default."""
        return self.batch_size or 64

    @classmethod
    def of(
        cls, options: Self | None = None, *, guidance_scale: float = 1.0, **settings: Any
    ) -> Self:
        """Returns `options`, or new ones from the arguments of `ImageGenerator.sample_tokens`.

        Raises:
            UserError: if the arguments repeat the options, or an argument is out of range.
        """
        try:
            new_options = cls(guidance=Guidance(scale=guidance_scale), **settings)
        except ValidationError as error:
            problem = error.errors()[0]
            raise UserError(
                f"{problem['loc'][0]} is {problem['input']!r}: {problem['msg']}."
            ) from error
        if options is not None and new_options != cls():
            raise UserError("pass temperature, seed and so on in `options`, not in addition to it.")
        return options or new_options
