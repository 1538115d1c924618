"""What `evaluate_model` can be told."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from taming.errors import UserError
from taming.generation import Guidance, SamplingOptions

__all__ = ["EvaluationSettings"]


@dataclass(frozen=True)
class EvaluationSettings:
    """What to measure on, and how to sample.

    Attributes:
        num_samples: images drawn with each of `guidance_scales`, and training images compared.
        guidance_scales: strengths of classifier-free guidance to sample with, each by itself; 1 is
            without guidance.
        temperature, top_k, top_p, guidance_schedule, guidance_power, guidance_interval: see
            `ImageGenerator.sample_tokens`.
        seed: of samples, and of which images are taken; the same for every guidance scale.
        max_images: only so many of the validation images; None: all.
        batch_size: images at once, which bounds the memory.

    Raises:
        UserError: for values out of range.
    """

    num_samples: int = 1000
    guidance_scales: Sequence[float] = (1.0,)
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    guidance_schedule: str = "constant"
    guidance_power: float = 1.0
    guidance_interval: Sequence[float] = (0.0, 1.0)
    seed: int = 0
    max_images: int | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name, least in (("num_samples", 2), ("batch_size", 1), ("max_images", 2), ("seed", 0)):
            value = getattr(self, name)
            if value is None and name == "max_images":
                continue
            if not isinstance(value, int) or value < least:
                raise UserError(f"{name}={value}: give a whole number, {least} or more.")
        scales = self.guidance_scales
        if isinstance(scales, int | float) or not scales:
            raise UserError(
                f"guidance_scales={scales}: give a list of numbers, such as [1.0,2.0]; [1.0] is "
                "without guidance."
            )
        if len({f"{scale:g}" for scale in scales}) < len(scales):
            raise UserError(f"guidance_scales={list(scales)}: each one once, to six digits.")
        for scale in scales:
            self.sampling(scale)  # checks itself

    def notes(self, num_tokens: int) -> list[str]:
        """What is said of guidance and has no effect on images of so many tokens, a sentence."""
        guided = [scale for scale in self.guidance_scales if scale != 1]
        notes = self._guidance(guided[0] if guided else 1.0).notes(num_tokens)
        return [note[0].upper() + note[1:] for note in notes]

    def _guidance(self, scale: float) -> Guidance:
        return Guidance(scale, self.guidance_schedule, self.guidance_power, self.guidance_interval)

    def sampling(self, guidance_scale: float) -> SamplingOptions:
        """How to sample with one of the guidance scales."""
        return SamplingOptions(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            guidance=self._guidance(guidance_scale),
            seed=self.seed,
            batch_size=self.batch_size,
        )

    def plain(self) -> dict[str, Any]:
        """As metrics.json holds it."""
        lists = ("guidance_scales", "guidance_interval")
        return {**asdict(self), **{name: list(getattr(self, name)) for name in lists}}
