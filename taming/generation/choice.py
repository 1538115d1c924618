"""From logits to tokens: guidance, filters, and random numbers that belong to the image.

The filters are pure functions of `(… v)` logits, each row with a finite greatest one. A token that
is ruled out gets -∞. Of equally probable tokens the lower one counts as the more probable, so that
the result is always well defined. Half-precision logits are computed with in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from taming.generation.options import SamplingOptions

__all__ = [
    "TokenChoice",
    "apply_temperature",
    "filter_logits",
    "guide",
    "keep_top_p",
    "random_numbers",
    "sample_by_inverse_cdf",
    "top_k_tokens",
]


def guide(conditional: Tensor, unconditional: Tensor, scale: float | Tensor) -> Tensor:
    """Returns guided logits: unconditional + scale·(conditional - unconditional), in float32.

    Computed as conditional + (scale - 1)·(conditional - unconditional), so that logits come out of
    a scale of 1 exactly as they are. Logits are `(b v)`; a scale that is a tensor has one element.
    """
    conditional, unconditional = conditional.float(), unconditional.float()
    scale = torch.as_tensor(scale, dtype=torch.float32)
    return conditional + (scale - 1) * (conditional - unconditional)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divides the logits: below 1 probable tokens become more probable, above 1 less.

    The greatest is put to 0 first, which changes no probability and lets no temperature overflow.
    At 1e-30 and below only the most probable tokens are left, at 1e30 and above all that are not
    ruled out are equally probable.
    """
    temperature = min(max(temperature, 1e-30), 1e30)  # in float32 neither 0 nor ∞, nor is 1 / it
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def top_k_tokens(logits: Tensor, k: int) -> Tensor:
    """Returns the k most probable tokens, `(… k)` int64 in ascending order; k is at most v."""
    highest = logits.topk(k).values  # (… k)
    threshold = highest[..., -1:]  # (… 1)
    room = (highest == threshold).sum(dim=-1, keepdim=True)  # for the first that are level with it
    level = logits == threshold  # (… v)
    kept = (logits > threshold) | (level & (level.cumsum(dim=-1, dtype=torch.int32) <= room))
    place = torch.arange(1, k + 1, dtype=torch.int32, device=logits.device)
    # the token at which the count of those kept reaches each place
    counts = kept.cumsum(dim=-1, dtype=torch.int32)  # (… v)
    return torch.searchsorted(counts, place.expand(highest.shape).contiguous())


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the fewest most probable tokens whose probabilities sum to at least p.

    Nucleus sampling (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration",
    equation 2). At least one token is kept.
    """
    if p == 1:
        return logits  # whatever rounding makes of the sum
    order = logits.argsort(dim=-1, descending=True, stable=True)  # (… v), most probable first
    precision = torch.promote_types(logits.dtype, torch.float32)
    probabilities = logits.to(precision).softmax(dim=-1).gather(-1, order)  # (… v)
    reached = probabilities.cumsum(dim=-1) >= p  # (… v), with this token
    reached_before = F.pad(reached[..., :-1], (1, 0))  # (… v), False for the first
    ruled_out = torch.empty_like(reached).scatter(-1, order, reached_before)
    return logits.masked_fill(ruled_out, -torch.inf)


def filter_logits(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> tuple[Tensor, Tensor | None]:
    """Applies temperature, top-k and top-p in this order; None skips a filter.

    Temperature leaves the order of the tokens as it is, so top-k comes first in fact: what follows
    computes with k logits and not with all v.

    Returns:
        Logits, and the tokens that they are of, in ascending order; None where they are of all.
    """
    tokens = None
    if top_k is not None and top_k < logits.shape[-1]:
        tokens = top_k_tokens(logits, top_k)
        logits = logits.gather(-1, tokens)
    logits = apply_temperature(logits, temperature)
    return logits if top_p is None else keep_top_p(logits, top_p), tokens


def random_numbers(seed: int, image_numbers: Sequence[int], num_tokens: int) -> Tensor:
    """Returns numbers in [0, 1) for each token of images, `(b num_tokens)` float64 on the CPU.

    They depend on the seed and the image's number alone, not on batch or device.
    """
    rows = [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,))).random(num_tokens)
        for number in image_numbers
    ]
    return torch.from_numpy(np.stack(rows))


def sample_by_inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    """Samples softmax(logits): the first token whose cumulative probability exceeds the number.

    From logits `(b v)` and numbers `(b,)` in [0, 1) to tokens `(b,)`, none of probability 0.
    """
    precision = torch.float32 if logits.device.type == "mps" else torch.float64  # all mps has
    cumulative = logits.to(precision).softmax(dim=-1).cumsum(dim=-1)  # (b v)
    total = cumulative[:, -1:]  # (b 1), 1 but for rounding
    threshold = uniform.to(cumulative)[:, None] * total  # (b 1)
    threshold = torch.minimum(threshold, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(1)


@dataclass(frozen=True)
class TokenChoice:
    """Chooses tokens from logits: guidance, then filters, then a random number."""

    uniforms: Tensor | None = None  # (b n) from `random_numbers`; None takes the most probable
    scales: Tensor | None = None  # (n,) guidance scale of each token; None: no guidance
    guided: range = range(0)  # the tokens whose scale is not 1, and those between them
    temperature: float = 1.0  # see `filter_logits`
    top_k: int | None = None
    top_p: float | None = None

    @classmethod
    def of(
        cls, options: SamplingOptions, numbers: Sequence[int], num_tokens: int, device: torch.device
    ) -> Self:
        """Returns the choice for images of these numbers; the options must have a seed."""
        uniforms = scales = None
        if not options.greedy:
            assert options.seed is not None
            uniforms = random_numbers(options.seed, numbers, num_tokens)  # (b n)
            if device.type == "mps":
                uniforms = uniforms.float()  # it has no float64
            uniforms = uniforms.to(device)
        if guided := options.guidance.guided(num_tokens):
            scales = options.guidance.scales(num_tokens).to(device)
        return cls(uniforms, scales, guided, options.temperature, options.top_k, options.top_p)

    @property
    def num_sequences(self) -> int:
        """Sequences through the transformer for each image: 2 with guidance, with and without."""
        return 1 if self.scales is None else 2

    def __call__(self, logits: Tensor, number: Tensor) -> Tensor:
        """Takes the token of a number `(1,)` for each image, `(b,)` int64.

        Logits are `(b v)`; with guidance `(2b v)`, those with condition first.
        """
        logits = logits.float()
        if self.scales is not None:
            conditional, unconditional = logits.chunk(2)  # (b v)
            logits = guide(conditional, unconditional, self.scales[number])
        if self.uniforms is None:
            return logits.argmax(dim=-1)
        kept, tokens = filter_logits(logits, self.temperature, self.top_k, self.top_p)
        uniform = self.uniforms.index_select(1, number).squeeze(1)  # (b)
        place = sample_by_inverse_cdf(kept, uniform)
        return place if tokens is None else tokens.gather(1, place[:, None]).squeeze(1)

    @property
    def unguided(self) -> Self:
        """The choice where the scale is 1: from the logits with condition alone."""
        return replace(self, scales=None)

    @property
    def settings(self) -> tuple[object, ...]:
        """What a compiled step is specialised on: settings and shapes, not values."""
        shapes = [None if x is None else x.shape for x in (self.uniforms, self.scales)]
        return self.temperature, self.top_k, self.top_p, *shapes

    def narrow(self, start: int, length: int) -> Self:
        """Returns the choice for some tokens of the image, which then count from 0."""
        guided = range(self.guided.start - start, self.guided.stop - start)
        return replace(self._map(lambda x: x.narrow(-1, start, length)), guided=guided)

    def clone(self) -> Self:
        """Returns the choice with memory of its own."""
        return self._map(torch.clone)

    def copy_(self, other: "TokenChoice") -> None:
        """Copies another choice's random numbers and scales into this one's memory."""
        for own, new in ((self.uniforms, other.uniforms), (self.scales, other.scales)):
            if own is not None and new is not None:
                own.copy_(new)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        uniforms = None if self.uniforms is None else function(self.uniforms)
        scales = None if self.scales is None else function(self.scales)
        return replace(self, uniforms=uniforms, scales=scales)
