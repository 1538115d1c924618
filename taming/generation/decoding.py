"""The decoding loop: one token after the other, each image with its own random numbers."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from taming.attention import KeyValueCache
from taming.errors import UserError
from taming.generation.filtering import filter_logits
from taming.transformer import GPT

__all__ = [
    "Choice",
    "decode_tokens",
    "greedy_choice",
    "random_choice",
    "random_numbers",
    "sample_by_inverse_cdf",
]

Choice = Callable[[Tensor, int], Tensor]
"""From logits `(b v)` for the token at a place (its number in the sequence) to tokens `(b,)`."""


def random_numbers(seed: int, image_numbers: Sequence[int], num_tokens: int) -> Tensor:
    """The random numbers of some images: one in [0, 1) for each of their tokens.

    They depend on the seed and the image's number alone, not on batch or device.

    Returns:
        `(b num_tokens)` float64 on the CPU.
    """
    if seed < 0:
        raise UserError(f"seed is {seed} and must not be negative.")
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


def random_choice(
    uniforms: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Choice:
    """Samples each token from the filtered logits.

    Args:
        uniforms: `(b n)` of `random_numbers`, on the model's device.
        temperature: see `taming.generation.filtering`.
        top_k: likewise.
        top_p: likewise.
    """

    def choose(logits: Tensor, place: int) -> Tensor:
        filtered = filter_logits(logits, temperature, top_k, top_p)
        return sample_by_inverse_cdf(filtered, uniforms[:, place])

    return choose


def greedy_choice(logits: Tensor, place: int) -> Tensor:
    """Takes the most probable token."""
    return logits.argmax(dim=-1)


@torch.no_grad()
def decode_tokens(
    transformer: GPT,
    prefix: Tensor,
    given_tokens: Tensor,
    num_tokens: int,
    choose: Choice,
    on_tokens: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """Continues the given tokens until there are `num_tokens`.

    Prefill puts prefix and given tokens through the transformer at once; then each new token goes
    through alone, the keys and values of those before it being in the cache.

    Args:
        transformer: in evaluation mode.
        prefix: `(b p)`.
        given_tokens: `(b m)` first tokens, m at most `num_tokens`.
        num_tokens: n.
        choose: how a token is taken from its logits.
        on_tokens: told the number of new tokens after each step, for a progress bar.

    Returns:
        `(b n)` int64, the given tokens included.
    """
    batch_size, num_given = given_tokens.shape
    if num_given == num_tokens:
        return given_tokens
    tokens = given_tokens.new_empty(batch_size, num_tokens)
    tokens[:, :num_given] = given_tokens

    cache = KeyValueCache(len(transformer.blocks), prefix.shape[1] + num_tokens)
    logits = transformer(prefix, given_tokens, cache)[:, -1]  # (b v)
    if logits.isnan().any():
        raise UserError(
            "the transformer's logits are not numbers (NaN): its training diverged or its weights "
            "are damaged. Use an earlier checkpoint."
        )
    no_prefix = prefix[:, :0]
    for place in range(num_given, num_tokens):
        if place > num_given:
            logits = transformer(no_prefix, tokens[:, place - 1 : place], cache)[:, -1]  # (b v)
        tokens[:, place] = choose(logits.float(), place)
        on_tokens(batch_size)
    return tokens
