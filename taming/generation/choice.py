"""From logits to tokens: guidance, filters, and random numbers that belong to the image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from taming.generation.filtering import filter_logits
from taming.generation.guidance import guide

__all__ = ["TokenChoice", "random_numbers", "sample_by_inverse_cdf"]


def random_numbers(seed: int, image_numbers: Sequence[int], num_tokens: int) -> Tensor:
    """Returns the random numbers of some images: one in [0, 1) for each of their tokens.

    They depend on the seed and the image's number alone, not on batch or device.

    Returns:
        `(b num_tokens)` float64 on the CPU.
    """
    rows = [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,))).random(num_tokens)
        for number in image_numbers
    ]
    return torch.from_numpy(np.stack(rows))


def sample_by_inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    """Samples softmax(logits): the first token whose cumulative probability exceeds the number.

    Args:
        logits: `(b v)`.
        uniform: `(b,)` numbers in [0, 1).

    Returns:
        `(b,)` int64; never a token of probability 0.
    """
    precision = torch.float32 if logits.device.type == "mps" else torch.float64  # all mps has
    cumulative = logits.to(precision).softmax(dim=-1).cumsum(dim=-1)  # (b v)
    total = cumulative[:, -1:]  # (b 1), 1 but for rounding
    threshold = uniform.to(cumulative)[:, None] * total  # (b 1)
    threshold = torch.minimum(threshold, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(1)


@dataclass(frozen=True)
class TokenChoice:
    """How a token is taken from its logits: guidance, then filters, then a random number.

    Attributes:
        uniforms: `(b n)` from `random_numbers`, on the model's device; None takes the most probable
            token each time.
        scales: `(n,)` guidance scale of each token of the image; None for no guidance.
        temperature, top_k, top_p: see `filter_logits`.
    """

    uniforms: Tensor | None = None
    scales: Tensor | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    @property
    def num_sequences(self) -> int:
        """Sequences through the transformer for each image: 2 with guidance, with and without."""
        return 1 if self.scales is None else 2

    def __call__(self, logits: Tensor, number: Tensor) -> Tensor:
        """Takes one token for each image.

        Args:
            logits: `(b v)`; with guidance `(2b v)`, those with condition first.
            number: `(1,)` int64, the token's number in its image.

        Returns:
            `(b,)` int64.
        """
        logits = logits.float()
        if self.scales is not None:
            conditional, unconditional = logits.chunk(2)  # (b v)
            logits = guide(conditional, unconditional, self.scales[number])
        if self.uniforms is None:
            return logits.argmax(dim=-1)
        filtered = filter_logits(logits, self.temperature, self.top_k, self.top_p)
        return sample_by_inverse_cdf(filtered, self.uniforms[:, number].squeeze(1))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors there are, both with the token's number as last dimension."""
        return [x for x in (self.uniforms, self.scales) if x is not None]

    @property
    def settings(self) -> tuple[object, ...]:
        """All but the tensors' values: what a compiled step depends on."""
        shapes = [None if x is None else x.shape for x in (self.uniforms, self.scales)]
        return self.temperature, self.top_k, self.top_p, *shapes

    def at(self, numbers: Tensor) -> "TokenChoice":
        """Returns the choice for some tokens of the image, which then count from 0."""
        return self.map(lambda x: x[..., numbers])

    def map(self, function: Callable[[Tensor], Tensor]) -> "TokenChoice":
        """Returns the choice with each tensor replaced by a function of it."""
        uniforms = None if self.uniforms is None else function(self.uniforms)
        scales = None if self.scales is None else function(self.scales)
        return replace(self, uniforms=uniforms, scales=scales)
