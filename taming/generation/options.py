"""How to sample: what the commands set and `ImageGenerator` takes, declared once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from taming.errors import UserError
from taming.generation.guidance import Guidance

__all__ = ["SamplingOptions", "check_grid_size"]


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
        if self.seed is not None and self.seed < 0:
            raise UserError(f"seed is {self.seed} and must not be negative.")
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size} and must be at least 1.")
        if self.grid_size is not None:
            object.__setattr__(self, "grid_size", check_grid_size(self.grid_size))

    @classmethod
    def of(
        cls,
        options: Self | None,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        guidance_scale: float,
        greedy: bool,
        seed: int | None,
    ) -> Self:
        """Returns the options, or those that the arguments of `ImageGenerator.sample` make.

        Raises:
            UserError: if there are both.
        """
        arguments = cls(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            guidance=Guidance(guidance_scale),
            greedy=greedy,
            seed=seed,
        )
        if options is None:
            return arguments
        if arguments != cls():
            raise UserError("give temperature, seed and so on in the options, not beside them.")
        return options


def check_grid_size(grid_size: int | Sequence[int]) -> tuple[int, int]:
    """Returns (height, width), for one number a square; raises a `UserError` for anything else."""
    sides = grid_size if isinstance(grid_size, Sequence) else (grid_size, grid_size)
    if len(sides) != 2 or min(sides) < 1 or any(side != int(side) for side in sides):
        raise UserError(
            f"grid_size is {grid_size} and must be (height, width) in codes, or one whole number "
            "for a square."
        )
    return int(sides[0]), int(sides[1])
