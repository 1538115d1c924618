"""Decoding token by token: prefill and step are one function of tokens and their positions."""

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from taming.attention import CacheView, KeyValueCache
from taming.conditioning import Prompt
from taming.generation.choice import TokenChoice
from taming.runtime.contexts import without_cudnn_attention
from taming.runtime.errors import UserError
from taming.transformer import GPT

__all__ = ["CapturedStep", "CompiledSteps", "Steps", "decode_tokens", "next_tokens"]

SPAN = 64  # a compiled step attends to a multiple of so many positions, most of them written
Step = Callable[[Tensor, Tensor], Tensor]  # see `next_tokens`


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
    """Returns the tokens `(b,)` that follow the latest `(b 1)`.

    The latest are at a position `(1,)`; for `visible` see `CacheView`.
    """
    tokens = latest if choose.num_sequences == 1 else torch.cat([latest, latest])
    view = CacheView(cache, position, visible, slice(len(tokens)))
    return choose(next_logits(transformer, view, tokens), position - num_prefix + 1)


class Steps:
    """Prefill and steps of batches of one shape.

    With guidance the first half of the sequences has the condition, and the second has none. A
    token that is not guided, its scale being 1, depends on the first half alone: the second is not
    computed for it, and catches up when a guided token is next.

    Args:
        transformer: in evaluation mode.
        choose: chooses a token from its logits.
        prompt: as many sequences, as long, as those that will be decoded.
        num_tokens: longest sequence of tokens.
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
        # more than the longest span: the compiler takes a view of everything for a case of its own
        max_length = _span(self.num_prefix + num_tokens) + 1
        self.cache = KeyValueCache(len(transformer.blocks), num_sequences, max_length)
        self.positions = torch.arange(max_length, device=prompt.prefix.device)

    @without_cudnn_attention()
    def prefill(self, prompt: Prompt, tokens: Tensor, rows: slice = slice(None)) -> Tensor:
        """Returns the logits of what follows the prompts in these rows and tokens `(b n)`."""
        prompt = prompt.rows(rows)
        tokens = tokens.repeat(len(prompt.prefix) // len(tokens), 1)
        positions = self.positions[: self.num_prefix + tokens.shape[1]]
        view = CacheView(self.cache, positions, len(positions), rows)
        return next_logits(self.transformer, view, tokens, prompt)

    @without_cudnn_attention()
    def step(self, latest: Tensor, number: int, guided: bool) -> Tensor:
        """Returns token `number` (at least 1) of each image, `(b,)`, given the one before it."""
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


class CompiledSteps(Steps):
    """Steps that are compiled when they are first called, which takes a while.

    A step is small: run operation by operation it spends more time on starting them than on
    computing. It attends to the first 64 positions, 128, 192 and so on: the compiled code takes any
    number of them. On GPUs it is also captured as a graph for each of these numbers, for which the
    cache and the random numbers stay at the same place in memory from batch to batch.
    """

    def __init__(
        self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int
    ) -> None:
        super().__init__(transformer, choose.clone(), prompt, num_tokens)
        self._compiled: dict[bool, Callable[..., Tensor]] = {}  # by whether a token is guided
        self._captured: dict[tuple[bool, int], CapturedStep] = {}  # and by the positions shown
        self._key = _key(transformer, choose, prompt, num_tokens)

    def fits(self, *arguments: Any) -> bool:
        """Whether the compiled steps can be reused for these constructor arguments."""
        return self._key == _key(*arguments)

    @without_cudnn_attention()
    def step(self, latest: Tensor, number: int, guided: bool) -> Tensor:
        """See `Steps`."""
        end = self.num_prefix + number
        position = self.positions[end - 1 : end]
        span = _span(end)
        visible = self.positions[:span]
        torch._dynamo.mark_dynamic(visible, 0)  # or each span would be compiled
        if guided not in self._compiled:
            self._compiled[guided] = self._compile()
        step = partial(self.run, self._compiled[guided], guided, visible=visible)
        if not self._captures(latest.device):
            return step(latest, position)
        if (guided, span) not in self._captured:
            first = next(iter(self._captured.values()), None)
            self._captured[guided, span] = CapturedStep(step, latest, position, first)
        return self._captured[guided, span](latest, position)

    def _compile(self) -> Callable[..., Tensor]:
        # PyTorch limits how often the code of a function is compiled: this one's is its own
        function = FunctionType(next_tokens.__code__.replace(), next_tokens.__globals__)
        return torch.compile(function, fullgraph=True, dynamic=False)

    def _captures(self, device: torch.device) -> bool:
        return device.type == "cuda"


class CapturedStep:
    """A step recorded on the GPU with its memory, and replayed.

    Steps share the memory of the `first` one, if the result of each is used before another is
    called. That takes its stream, too: memory is reused on the stream that it was allocated on.
    """

    stream: torch.cuda.Stream  # of a device which need not be the current one
    graph: torch.cuda.CUDAGraph

    def __init__(
        self, step: Step, latest: Tensor, position: Tensor, first: "CapturedStep | None" = None
    ) -> None:
        self.latest, self.position = latest.clone(), position.clone()
        self.stream = torch.cuda.Stream(latest.device) if first is None else first.stream
        stream, pool = self.stream, None if first is None else first.graph.pool()
        stream.wait_stream(torch.cuda.current_stream(latest.device))
        with torch.cuda.stream(stream):  # compiles, and sets aside what kernels need
            for _ in range(3):  # each writes the same keys and values at the same position
                step(self.latest, self.position)
        torch.cuda.current_stream(latest.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # of this thread alone: another may be loading data meanwhile
        with torch.cuda.graph(self.graph, pool, stream, capture_error_mode="thread_local"):
            self.result = step(self.latest, self.position)

    def __call__(self, latest: Tensor, position: Tensor) -> Tensor:
        """Runs the step: see `next_tokens`."""
        self.latest.copy_(latest)
        self.position.copy_(position)
        self.graph.replay()
        return self.result


def _span(length: int) -> int:
    """Rounds up to a multiple of `SPAN`."""
    return -(-length // SPAN) * SPAN


def _key(transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int) -> object:
    """Returns all that a compiled and captured step depends on."""
    kind = prompt.prefix.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    # none moved, converted or replaced
    addresses = [x.data_ptr() for x in (*transformer.parameters(), *transformer.buffers())]
    modes = torch.is_inference_mode_enabled(), autocast
    return id(transformer), addresses, modes, choose.settings, prompt.prefix.shape, num_tokens


@torch.no_grad()
def decode_tokens(
    steps: Steps,
    prompt: Prompt,
    given_tokens: Tensor,
    num_tokens: int,
    guided: range = range(0),
) -> Iterator[Tensor]:
    """Continues the given tokens `(b m)` until there are `num_tokens`: yields each one's `(b,)`.

    Prefill puts prefix and given tokens through the transformer at once; then each new token goes
    through alone, the keys and values of those before it being in the cache. What is yielded is to
    be copied before the next one is drawn.
    """
    batch_size, num_given = given_tokens.shape
    if num_given == num_tokens:
        return
    tokens = given_tokens.new_empty(batch_size, num_tokens)
    tokens[:, :num_given] = given_tokens
    is_guided = num_given in guided
    rows = slice(None) if is_guided else steps.with_condition
    logits = steps.prefill(prompt, given_tokens, rows)
    if logits.isnan().any():
        raise UserError(
            "the transformer's logits are not numbers (NaN): its training diverged or its weights "
            "are damaged. Use an earlier checkpoint."
        )
    latest = steps.choices[is_guided](logits, steps.positions[num_given : num_given + 1])  # (b)
    tokens[:, num_given] = latest
    yield latest
    for number in range(num_given + 1, num_tokens):
        if number == guided.start:
            steps.prefill(prompt, tokens[:, : number - 1], steps.without)
        # not a part of `tokens`, whose strides differ from window to window: each would be compiled
        latest = steps.step(latest[:, None], number, number in guided)
        tokens[:, number] = latest
        yield latest
