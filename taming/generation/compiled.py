"""The decoding step as one compiled function, on GPUs captured as a graph and replayed.

A step is small: run operation by operation it spends more time on starting them than on computing.
"""

from collections.abc import Callable
from types import FunctionType

import torch
from torch import Tensor

from taming.attention import KeyValueCache
from taming.conditioning import Prompt
from taming.generation.choice import TokenChoice
from taming.transformer import GPT

__all__ = ["CompiledSteps"]

SHORTEST_SPAN = 256
MOST_VARIANTS = 64  # of one object's step, most of all by span; PyTorch alone allows 8


class CompiledSteps:
    """Steps of decoding for batches of one shape; the first call compiles, which takes a while.

    The cache and the random numbers stay at the same place in memory from batch to batch, as a
    captured graph needs it.

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
        self.prefix_shape = prompt.prefix.shape
        self.num_prefix = prompt.prefix.shape[1]
        self.num_tokens = num_tokens
        self.cache = KeyValueCache(len(transformer.blocks), self.num_prefix + num_tokens)
        self.choose = choose.copied()
        self._places = torch.arange(num_tokens, device=transformer.head.weight.device)
        self._addresses = _addresses(transformer)
        self._modes = _modes(self._places.device)
        self._graphs: dict[int, _Graph] = {}
        dynamo = torch._dynamo.config
        dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_VARIANTS)
        # PyTorch counts variants by code object: with one of its own no other's count against it
        code = _next_tokens.__code__.replace()
        step = FunctionType(code, _next_tokens.__globals__, _next_tokens.__name__)
        self._compiled = torch.compile(step, fullgraph=True, dynamic=False)

    def fits(self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int) -> bool:
        """Whether it was made for these, or such as these; see the constructor's arguments."""
        return (
            transformer is self.transformer
            and _addresses(transformer) == self._addresses  # nothing moved, converted or replaced
            and (prompt.prefix.shape, num_tokens) == (self.prefix_shape, self.num_tokens)
            and choose.same_settings(self.choose)
            and _modes(self._places.device) == self._modes
        )

    def begin(self, choose: TokenChoice) -> KeyValueCache:
        """Takes over the random numbers of the next batch, and hands out the cache, empty."""
        self.choose.copy_(choose)
        self.cache.clear()
        return self.cache

    def step(self, latest: Tensor, place: int) -> Tensor:
        """The tokens that follow the latest ones.

        Args:
            latest: `(b 1)` int64.
            place: number of the new tokens in their images, 1 or more.

        Returns:
            `(b,)` int64.
        """
        span = self.cache.span = self._span(self.num_prefix + place)
        where = self._places[place : place + 1]
        if latest.device.type != "cuda":
            return self._run(latest, where)
        if span not in self._graphs:
            self._graphs[span] = _Graph(self._run, latest, where)
        return self._graphs[span](latest, where)

    def _run(self, latest: Tensor, place: Tensor) -> Tensor:
        return self._compiled(
            self.transformer, self.cache, self.choose, self.num_prefix, latest, place
        )

    def _span(self, length: int) -> int:
        """How much of the cache is looked at: few different numbers, none much too large."""
        span = SHORTEST_SPAN
        while span < length:
            span *= 2
        return min(span, self.cache.max_length)


def _next_tokens(
    transformer: GPT,
    cache: KeyValueCache,
    choose: TokenChoice,
    num_prefix: int,
    latest: Tensor,
    place: Tensor,
) -> Tensor:
    """`latest` `(b 1)`, whose successors have the number `place` `(1,)`, to those, `(b,)`."""
    logits = transformer.step(latest.repeat(choose.num_sequences, 1), num_prefix + place - 1, cache)
    return choose(logits, place)


def _addresses(transformer: GPT) -> tuple[int, ...]:
    """Where a captured graph finds the model."""
    return tuple(x.data_ptr() for x in (*transformer.parameters(), *transformer.buffers()))


def _modes(device: torch.device) -> tuple[object, ...]:
    """What else decides on the kind of memory that is set aside."""
    kind = device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return torch.is_inference_mode_enabled(), autocast


class _Graph:
    """A function of `latest` and `place`, recorded on the GPU with its memory and replayed."""

    def __init__(
        self, function: Callable[[Tensor, Tensor], Tensor], latest: Tensor, place: Tensor
    ) -> None:
        self.latest, self.place = latest.clone(), place.clone()
        stream = torch.cuda.Stream(latest.device)  # which need not be the current device
        stream.wait_stream(torch.cuda.current_stream(latest.device))
        with torch.cuda.stream(stream):  # compiles, and sets aside what kernels need
            for _ in range(3):  # each writes the same keys and values to the same place
                function(self.latest, self.place)
        torch.cuda.current_stream(latest.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # of this thread alone: another may be loading data meanwhile
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.result = function(self.latest, self.place)

    def __call__(self, latest: Tensor, place: Tensor) -> Tensor:
        self.latest.copy_(latest)
        self.place.copy_(place)
        self.graph.replay()
        return self.result
