"""From logits to tokens: guidance, filters, and each image's own random numbers.

The filters are pure functions of logits `(… v)` whose rows have a finite maximum. They set the
logits of excluded tokens to -∞. Among equally probable tokens the lower one counts as more
probable, so the result is well defined. Half-precision logits are filtered in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from taming.generation.options import SamplingOptions
from taming.runtime.dtypes import at_least_float32

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
    """Returns guided logits: unconditional + scale·(conditional - unconditional).

    The formula is conditional + (scale - 1)·(conditional - unconditional), so that a scale of 1
    returns the conditional logits exactly.

    Args:
        conditional: logits `(… v)` with condition.
        unconditional: logits `(… v)` without condition.
        scale: a number, or a tensor that broadcasts to the logits.
    """
    conditional, unconditional = at_least_float32(conditional), at_least_float32(unconditional)
    scale = torch.as_tensor(scale, dtype=conditional.dtype)
    return conditional + (scale - 1) * (conditional - unconditional)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divides the logits: below 1 probable tokens become more probable, above 1 less probable.

    It first shifts the maximum to 0, which changes no probability and prevents overflow. At 1e-30
    and below only the most probable tokens remain. At 1e30 and above all tokens that are not
    excluded become equally probable.
    """
    temperature = min(max(temperature, 1e-30), 1e30)  # its inverse is also finite in float32
    logits = at_least_float32(logits)
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def top_k_tokens(logits: Tensor, k: int) -> Tensor:
    """Returns the k most probable tokens, `(… k)` int64 in ascending order; k is at most v."""
    highest = logits.topk(k).values  # (… k)
    threshold = highest[..., -1:]  # (… 1)
    num_ties = (highest == threshold).sum(dim=-1, keepdim=True)  # the first ties are in the top k
    ties = logits == threshold  # (… v)
    in_top_k = (logits > threshold) | (ties & (ties.cumsum(dim=-1, dtype=torch.int32) <= num_ties))
    ranks = torch.arange(1, k + 1, dtype=torch.int32, device=logits.device)
    # the running count reaches i at the i-th token of the top k
    counts = in_top_k.cumsum(dim=-1, dtype=torch.int32)  # (… v)
    return torch.searchsorted(counts, ranks.expand(highest.shape).contiguous())


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the fewest most probable tokens whose probabilities sum to at least p.

    Nucleus sampling (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration",
    equation 2). At least one token is kept.
    """
    if p == 1:
        return logits  # rounding could make the sum reach 1 early
    order = logits.argsort(dim=-1, descending=True, stable=True)  # (… v), most probable first
    probabilities = at_least_float32(logits).softmax(dim=-1).gather(-1, order)  # (… v)
    reaches_p = probabilities.cumsum(dim=-1) >= p  # (… v), including this token
    is_excess = F.pad(reaches_p[..., :-1], (1, 0))  # (… v), False for the first token
    excluded = torch.empty_like(reaches_p).scatter(-1, order, is_excess)
    return logits.masked_fill(excluded, -torch.inf)


def filter_logits(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> tuple[Tensor, Tensor | None]:
    """Applies temperature, top-k and top-p in this order; None skips a filter.

    Temperature does not change the order of the tokens. The code therefore applies top-k first, and
    the other filters compute with k logits instead of v.

    Returns:
        logits `(… k)` and their tokens `(… k)` in ascending order; or `(… v)` and None, without
        top-k.
    """
    tokens = None
    if top_k is not None and top_k < logits.shape[-1]:
        tokens = top_k_tokens(logits, top_k)
        logits = logits.gather(-1, tokens)
    logits = apply_temperature(logits, temperature)
    return logits if top_p is None else keep_top_p(logits, top_p), tokens


def random_numbers(seed: int, image_numbers: Sequence[int], num_tokens: int) -> Tensor:
    """Returns a number in [0, 1) for each token of images, `(b num_tokens)` float64 on the CPU.

    They depend only on the seed and the image's number, not on batch or device.
    """
    rows = [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,))).random(num_tokens)
        for number in image_numbers
    ]
    return torch.from_numpy(np.stack(rows))


def sample_by_inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    """Samples softmax(logits): the first token whose cumulative probability exceeds the number.

    Args:
        logits: `(… v)`.
        uniform: numbers `(…)` in [0, 1).

    Returns:
        tokens `(…)`, never of probability 0.
    """
    # MPS has no float64
    precision = torch.float32 if logits.device.type == "mps" else torch.float64
    cumulative = logits.to(precision).softmax(dim=-1).cumsum(dim=-1)  # (… v)
    total = cumulative[..., -1:]  # (… 1), 1 except for rounding
    threshold = uniform.to(cumulative)[..., None] * total  # (… 1)
    threshold = torch.minimum(threshold, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)


@dataclass(frozen=True)
class TokenChoice:
    """Chooses tokens from logits: guidance, then filters, then a random number."""

    uniforms: Tensor | None = None  # (b n) from `random_numbers`; None: the most probable token
    scales: Tensor | None = None  # (n,) guidance scale of each token; None: no guidance
    guided: range = range(0)  # from the first to the last token whose scale is not 1
    temperature: float = 1.0  # see `filter_logits`
    top_k: int | None = None
    top_p: float | None = None

    @classmethod
    def of(
        cls,
        options: SamplingOptions,
        numbers: Sequence[int],
        num_tokens: int,
        device: torch.device,
        num_scales: int | None = None,
    ) -> Self:
        """Returns the choice for images with these numbers; the options must have a seed.

        The images have `num_tokens` tokens, and guidance spreads over `num_scales`, by default
        over all.
        """
        uniforms = scales = None
        if not options.greedy:
            assert options.seed is not None
            uniforms = random_numbers(options.seed, numbers, num_tokens)  # (b n)
            if device.type == "mps":
                uniforms = uniforms.float()
            uniforms = uniforms.to(device)
        num_scales = num_tokens if num_scales is None else num_scales
        if guided := options.guidance.guided(num_scales):
            scales = options.guidance.scales(num_scales).to(device)
        return cls(uniforms, scales, guided, options.temperature, options.top_k, options.top_p)

    @property
    def num_sequences(self) -> int:
        """Number of sequences for each image: with guidance 2, with and without condition."""
        return 1 if self.scales is None else 2

    def __call__(self, logits: Tensor, numbers: Tensor) -> Tensor:
        """Chooses k tokens for each image.

        Args:
            logits: `(b k v)`; with guidance `(2b k v)`, the half with condition first.
            numbers: `(k,)`, the tokens' numbers in the image.

        Returns:
            `(b k)` int64.
        """
        logits = at_least_float32(logits)
        if self.scales is not None:
            conditional, unconditional = logits.chunk(2)  # (b k v)
            logits = guide(conditional, unconditional, self.scales[numbers, None])
        if self.uniforms is None:
            return logits.argmax(dim=-1)
        filtered, tokens = filter_logits(logits, self.temperature, self.top_k, self.top_p)
        index = sample_by_inverse_cdf(filtered, self.uniforms.index_select(1, numbers))
        return index if tokens is None else tokens.gather(-1, index[..., None]).squeeze(-1)

    @property
    def unguided(self) -> Self:
        """The choice where the scale is 1: it reads only the logits with condition."""
        return replace(self, scales=None)

    @property
    def settings(self) -> tuple[object, ...]:
        """The settings and shapes that a compiled step depends on, without the values."""
        shapes = [None if x is None else x.shape for x in (self.uniforms, self.scales)]
        return self.temperature, self.top_k, self.top_p, *shapes

    def of_cells(self, rows: Tensor, cells: Tensor) -> Self:
        """Returns the choice for some images `(r,)`, and their cells `(r n)` in drawing order."""
        if self.uniforms is None:
            return self
        return replace(self, uniforms=self.uniforms[rows].gather(1, cells))

    def narrow(self, start: int, length: int) -> Self:
        """Returns the choice for `length` tokens from `start` on, counted from 0."""
        guided = range(self.guided.start - start, self.guided.stop - start)
        return replace(self._map(lambda x: x.narrow(-1, start, length)), guided=guided)

    def clone(self) -> Self:
        """Returns a copy that shares no memory with this choice."""
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
