"""Decoding step by step: the prefill and each step are one function of tokens and positions.

A step draws one token, or, in a model of any order, the tokens of several cells. Each of these
depends on all cells of earlier steps, and not on the others of its own step.
"""

from collections.abc import Callable, Iterator, Sequence

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
    transformer: GPT,
    cache: CacheView,
    tokens: Tensor,
    num_queries: int,
    cells: Tensor | None = None,
    prompt: Prompt | None = None,
) -> Tensor:
    """Returns the logits `(b k v)` of the k tokens that follow tokens `(b n)`.

    The first call for a sequence has a prompt. The positions in the cache's view then cover prefix
    and tokens. For `cells` see `GPT.features`.
    """
    prefix, context = (None, None) if prompt is None else prompt
    features = transformer.features(prefix, tokens, context, cells=cells, cache=cache)
    return transformer.head(features[:, -num_queries:])


def next_tokens(
    transformer: GPT,
    cache: KeyValueCache,
    choose: TokenChoice,
    num_prefix: int,
    latest: Tensor,
    positions: Tensor,
    visible: int | Tensor,
    cells: Tensor | None = None,
) -> Tensor:
    """Returns the k tokens `(b k)` that follow the latest n tokens `(b n)`.

    Their positions are `(n+k-1,)`: k - 1 copies of the latest token follow the n tokens. For
    `visible` see `CacheView`. For the cells `(b n+k)` of a model of any order see `GPT.features`.
    """
    num_queries = len(positions) - latest.shape[1] + 1
    if choose.num_sequences == 2:
        latest = torch.cat([latest, latest])
        cells = None if cells is None else torch.cat([cells, cells])
    view = CacheView(cache, positions, visible, stop=len(latest), num_queries=num_queries)
    logits = next_logits(transformer, view, latest, num_queries, cells)
    return choose(logits, positions[-num_queries:] - num_prefix + 1)


class Decoder:
    """Decodes batches of one shape with a cache.

    With guidance the first half of the sequences has the condition, and the second half has no
    condition. A token of scale 1 depends only on the first half. The second half skips such tokens
    and catches up before the next guided token.

    Args:
        transformer: in evaluation mode.
        choose: chooses tokens from their logits.
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
        self,
        prompt: Prompt,
        tokens: Tensor,
        num_known: int,
        ends: Sequence[int],
        guided: range = range(0),
        cells: Tensor | None = None,
        is_known: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Draws the tokens after the first `num_known`, in place.

        The prefill computes the prefix and the known tokens at once. Then each step computes the
        next tokens, with the keys and values of the earlier ones from the cache.

        Args:
            prompt: as in the constructor.
            tokens: `(b n)`. The first `num_known` are given.
            num_known: number of first tokens that all images know.
            ends: numbers of tokens after each step, ascending. Steps up to `num_known` are skipped.
            guided: from the first to the last guided token.
            cells: `(b n)`, the tokens' cells, for a model of any order.
            is_known: `(b n)`, where an image keeps the token it has; None for nowhere.

        Yields:
            the tokens of each step, `(b k)`. The next step may overwrite their memory.
        """
        start, latest, caught_up = num_known, tokens[:, :num_known], False
        for end in ends:
            if end <= start:
                continue
            is_guided = start < guided.stop and end > guided.start
            next_cells = None if cells is None else cells[:, start - latest.shape[1] : end]
            if start == num_known:
                rows = slice(None) if is_guided else self.with_condition
                logits = self.prefill(prompt, latest, end, rows, next_cells)
                if logits.isnan().any():
                    raise UserError(
                        "the transformer's logits are not numbers (NaN): its training diverged or "
                        "its weights are damaged. Use an earlier checkpoint."
                    )
                latest = self.choices[is_guided](logits, self.positions[start:end])  # (b k)
            else:
                if is_guided and not caught_up:
                    done = start - latest.shape[1]
                    earlier = None if cells is None else cells[:, : done + 1]
                    self.prefill(prompt, tokens[:, :done], done + 1, self.without, earlier)
                latest = self.step(latest, start, end, is_guided, next_cells)
            caught_up |= is_guided
            if is_known is not None:
                latest = torch.where(is_known[:, start:end], tokens[:, start:end], latest)
            tokens[:, start:end] = latest
            yield latest
            start = end

    @without_cudnn_attention()
    def prefill(
        self,
        prompt: Prompt,
        tokens: Tensor,
        end: int,
        rows: slice = slice(None),
        cells: Tensor | None = None,
    ) -> Tensor:
        """Returns the logits of what follows the prompts in these rows and tokens `(b n)`.

        They are `(b k v)`, for the tokens up to number `end`.
        """
        prompt = prompt.rows(rows)
        num_queries = end - tokens.shape[1]
        copies = len(prompt.prefix) // len(tokens), 1
        positions = self.positions[: self.num_prefix + end - 1]
        view = CacheView(
            self.cache, positions, len(positions), rows.start, rows.stop, num_queries=num_queries
        )
        cells = None if cells is None else cells.repeat(copies)
        return next_logits(
            self.transformer, view, tokens.repeat(copies), num_queries, cells, prompt
        )

    @without_cudnn_attention()
    def step(
        self, latest: Tensor, start: int, end: int, guided: bool, cells: Tensor | None
    ) -> Tensor:
        """Returns the tokens from number `start` (at least 1) to `end`, from those before them."""
        first = self.num_prefix + start - latest.shape[1]
        visible = self.num_prefix + end - 1
        return self.run(next_tokens, guided, latest, self.positions[first:visible], visible, cells)

    def run(
        self,
        function: Callable[..., Tensor],
        guided: bool,
        latest: Tensor,
        positions: Tensor,
        visible: int | Tensor,
        cells: Tensor | None = None,
    ) -> Tensor:
        """Calls `next_tokens`, or its compiled form."""
        shared = self.transformer, self.cache, self.choices[guided], self.num_prefix
        return function(*shared, latest, positions, visible, cells)


def round_up(length: int) -> int:
    """Rounds up to a multiple of `SPAN`."""
    return -(-length // SPAN) * SPAN
