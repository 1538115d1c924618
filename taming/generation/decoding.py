"""Decoding token by token: the prefill and each step are one function of tokens and positions."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from taming.attention import CacheView, KeyValueCache
from taming.conditioning import Prompt
from taming.generation.choice import TokenChoice
from taming.runtime.contexts import without_cudnn_attention
from taming.runtime.errors import UserError
from taming.transformer import GPT

__all__ = ["Decoder", "next_tokens", "round_up"]

SPAN = 64  # the visible positions of compiled steps are multiples of this number


def next_logits(
    transformer: GPT, cache: CacheView, tokens: Tensor, prompt: Prompt | None = None
) -> Tensor:
    """Returns the logits `(b v)` of what follows tokens `(b n)`.

    The first call for a sequence has a prompt. The positions in the cache's view then cover prefix
    and tokens.
    """
    prefix, context = (None, None) if prompt is None else prompt
    features = transformer.features(prefix, tokens, context, cache=cache)
    return transformer.head(features[:, -1])


def next_tokens(
    transformer: GPT,
    cache: KeyValueCache,
    choose: TokenChoice,
    num_prefix: int,
    latest: Tensor,
    position: Tensor,
    visible: int | Tensor,
) -> Tensor:
    """Returns the tokens `(b,)` that follow the latest tokens `(b 1)`.

    The latest tokens are at a position `(1,)`; for `visible` see `CacheView`.
    """
    tokens = latest if choose.num_sequences == 1 else torch.cat([latest, latest])
    view = CacheView(cache, position, visible, stop=len(tokens))
    return choose(next_logits(transformer, view, tokens), position - num_prefix + 1)


class Decoder:
    """Decodes batches of one shape with a cache.

    With guidance the first half of the sequences has the condition, and the second half has no
    condition. A token of scale 1 depends only on the first half. The second half skips such tokens
    and catches up before the next guided token.

    Args:
        transformer: in evaluation mode.
        choose: chooses a token from its logits.
        prompt: as many sequences as will be decoded, of the same length.
        num_tokens: length of the longest sequence of tokens.
    """

    def __init__(
        self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int
    ) -> None:
        self.transformer = transformer
        self.choose = choose
        self.choices = {True: choose, False: choose.unguided}  # by whether a token is guided
        num_sequences, self.num_prefix = prompt.prefix.shape
        num_images = num_sequences // choose.num_sequences
        self.with_condition, self.without = slice(num_images), slice(num_images, None)  # rows
        # one more than the longest span, because the compiler treats a view of everything apart
        max_length = round_up(self.num_prefix + num_tokens) + 1
        self.cache = KeyValueCache(len(transformer.blocks), num_sequences, max_length)
        self.positions = torch.arange(max_length, device=prompt.prefix.device)

    @torch.no_grad()
    def decode(
        self, prompt: Prompt, given_tokens: Tensor, num_tokens: int, guided: range = range(0)
    ) -> Iterator[Tensor]:
        """Continues `given_tokens` `(b m)` until there are `num_tokens`.

        The prefill computes the prefix and the given tokens at once. Then each step computes one
        token, with the keys and values of the earlier ones from the cache.

        Yields:
            each new token, `(b,)`. The next token may overwrite its memory.
        """
        batch_size, num_given = given_tokens.shape
        if num_given == num_tokens:
            return
        tokens = given_tokens.new_empty(batch_size, num_tokens)
        tokens[:, :num_given] = given_tokens
        is_guided = num_given in guided
        rows = slice(None) if is_guided else self.with_condition
        logits = self.prefill(prompt, given_tokens, rows)
        if logits.isnan().any():
            raise UserError(
                "the transformer's logits are not numbers (NaN): its training diverged or its "
                "weights are damaged. Use an earlier checkpoint."
            )
        latest = self.choices[is_guided](logits, self.positions[num_given : num_given + 1])  # (b)
        tokens[:, num_given] = latest
        yield latest
        for number in range(num_given + 1, num_tokens):
            if number == guided.start:
                self.prefill(prompt, tokens[:, : number - 1], self.without)
            # not a slice of `tokens`: its strides differ by window, and each would be compiled
            latest = self.step(latest[:, None], number, number in guided)
            tokens[:, number] = latest
            yield latest

    @without_cudnn_attention()
    def prefill(self, prompt: Prompt, tokens: Tensor, rows: slice = slice(None)) -> Tensor:
        """Returns the logits of what follows the prompts in these rows and tokens `(b n)`."""
        prompt = prompt.rows(rows)
        tokens = tokens.repeat(len(prompt.prefix) // len(tokens), 1)
        positions = self.positions[: self.num_prefix + tokens.shape[1]]
        view = CacheView(self.cache, positions, len(positions), rows.start, rows.stop)
        return next_logits(self.transformer, view, tokens, prompt)

    @without_cudnn_attention()
    def step(self, latest: Tensor, number: int, guided: bool) -> Tensor:
        """Returns token `number` (at least 1) of each image, `(b,)`, from the token before it."""
        end = self.num_prefix + number
        return self.run(next_tokens, guided, latest, self.positions[end - 1 : end], end)

    def run(
        self,
        function: Callable[..., Tensor],
        guided: bool,
        latest: Tensor,
        position: Tensor,
        visible: int | Tensor,
    ) -> Tensor:
        """Calls `next_tokens`, or its compiled form."""
        shared = self.transformer, self.cache, self.choices[guided], self.num_prefix
        return function(*shared, latest, position, visible)


def round_up(length: int) -> int:
    """Rounds up to a multiple of `SPAN`."""
    return -(-length // SPAN) * SPAN
