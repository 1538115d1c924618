"""Decoding token by token: prefill and step are one function of tokens and their positions."""

from collections.abc import Callable

import torch
from torch import Tensor

from taming.attention import KeyValueCache
from taming.conditioning import Prompt
from taming.errors import UserError
from taming.generation.choice import TokenChoice
from taming.transformer import GPT

__all__ = ["Steps", "decode_tokens", "next_logits", "next_tokens"]


def next_logits(
    transformer: GPT,
    cache: KeyValueCache,
    tokens: Tensor,
    positions: Tensor,
    prompt: Prompt | None = None,
) -> Tensor:
    """Returns the logits `(b v)` of what follows the last of the tokens.

    Args:
        transformer: in evaluation mode.
        cache: has all earlier positions, and gets these.
        tokens: `(b n)` int64.
        positions: `(p+n,)` int64, those of the prefix first.
        prompt: of p prefix ids, where the sequence begins.
    """
    prefix, context = (None, None) if prompt is None else prompt
    features = transformer.features(prefix, tokens, context, positions=positions, cache=cache)
    return transformer.head(features[:, -1])


def next_tokens(
    transformer: GPT,
    cache: KeyValueCache,
    choose: TokenChoice,
    num_prefix: int,
    latest: Tensor,
    position: Tensor,
) -> Tensor:
    """Returns the tokens `(b,)` that follow the latest `(b 1)`, which are at a position `(1,)`."""
    tokens = latest.repeat(choose.num_sequences, 1)
    return choose(next_logits(transformer, cache, tokens, position), position - num_prefix + 1)


class Steps:
    """Prefill and steps of batches of one shape.

    Args:
        transformer: in evaluation mode.
        choose: how a token is taken from its logits.
        prompt: of as many sequences as there will be, and as long.
        num_tokens: longest sequence of tokens.
    """

    def __init__(
        self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int
    ) -> None:
        self.transformer = transformer
        self.choose = choose
        self.num_prefix = prompt.prefix.shape[1]
        max_length = self.num_prefix + num_tokens
        self.cache = KeyValueCache(len(transformer.blocks), max_length)
        self.positions = torch.arange(max_length, device=prompt.prefix.device)

    def prefill(self, prompt: Prompt, tokens: Tensor) -> Tensor:
        """Returns the logits of what follows prompts and tokens `(b n)`."""
        self.cache.clear()
        tokens = tokens.repeat(self.choose.num_sequences, 1)
        positions = self.positions[: self.num_prefix + tokens.shape[1]]
        return next_logits(self.transformer, self.cache, tokens, positions, prompt)

    def step(self, latest: Tensor, number: int) -> Tensor:
        """Returns the tokens that follow the latest ones.

        Args:
            latest: `(b 1)` int64.
            number: number of the new tokens in their images, 1 or more.

        Returns:
            `(b,)` int64.
        """
        end = self.num_prefix + number
        return self.run(next_tokens, latest, self.positions[end - 1 : end])

    def run(self, function: Callable[..., Tensor], latest: Tensor, position: Tensor) -> Tensor:
        """Calls `next_tokens`, or what has been made of it."""
        return function(
            self.transformer, self.cache, self.choose, self.num_prefix, latest, position
        )


@torch.no_grad()
def decode_tokens(
    steps: Steps,
    prompt: Prompt,
    given_tokens: Tensor,
    num_tokens: int,
    on_step: Callable[[], object] = lambda: None,
) -> Tensor:
    """Continues the given tokens until there are `num_tokens`.

    Prefill puts prefix and given tokens through the transformer at once; then each new token goes
    through alone, the keys and values of those before it being in the cache.

    Args:
        steps: made for these shapes.
        prompt: of b sequences; with guidance of 2b, those with condition first.
        given_tokens: `(b m)` first tokens, m at most `num_tokens`.
        num_tokens: n.
        on_step: called after each step, which gives every sequence a token; for a progress bar.

    Returns:
        `(b n)` int64, the given tokens included.
    """
    batch_size, num_given = given_tokens.shape
    if num_given == num_tokens:
        return given_tokens
    tokens = given_tokens.new_empty(batch_size, num_tokens)
    tokens[:, :num_given] = given_tokens
    logits = steps.prefill(prompt, given_tokens)  # (b v)
    if logits.isnan().any():
        raise UserError(
            "the transformer's logits are not numbers (NaN): its training diverged or its weights "
            "are damaged. Use an earlier checkpoint."
        )
    latest = steps.choose(logits, steps.positions[num_given : num_given + 1])  # (b)
    tokens[:, num_given] = latest
    on_step()
    for number in range(num_given + 1, num_tokens):
        # not a part of `tokens`, whose strides differ from window to window: each would be compiled
        latest = steps.step(latest[:, None], number)
        tokens[:, number] = latest
        on_step()
    return tokens
