"""The decoding step compiled, and on GPUs captured as a graph and replayed.

A step is small: run operation by operation it spends more time on starting them than on computing.
"""

from collections.abc import Callable
from types import FunctionType

import torch
from torch import Tensor

from taming.conditioning import Prompt
from taming.generation.choice import TokenChoice
from taming.generation.decoding import Steps, next_tokens
from taming.transformer import GPT

__all__ = ["CapturedStep", "CompiledSteps"]

SHORTEST_SPAN = 256


class CompiledSteps(Steps):
    """Steps that are compiled when they are first called, which takes a while.

    The cache and the random numbers stay at the same place in memory from batch to batch, as a
    captured graph needs it.
    """

    def __init__(
        self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int
    ) -> None:
        super().__init__(transformer, choose.map(torch.clone), prompt, num_tokens)
        self._steps: dict[int, Callable[[Tensor, Tensor], Tensor]] = {}  # by span
        self._key = key(transformer, choose, prompt, num_tokens)

    def fits(self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int) -> bool:
        """Returns whether what is compiled serves these; see the constructor's arguments."""
        return self._key == key(transformer, choose, prompt, num_tokens)

    def take(self, choose: TokenChoice) -> None:
        """Takes over the random numbers and scales of the next batch."""
        for own, new in zip(self.choose.tensors, choose.tensors, strict=True):
            own.copy_(new)

    def step(self, latest: Tensor, number: int) -> Tensor:
        """See `Steps`."""
        end = self.num_prefix + number
        position = self.positions[end - 1 : end]
        span = SHORTEST_SPAN  # of the cache: few different numbers, none much too large
        while span < end:
            span *= 2
        self.cache.span = span = min(span, self.cache.max_length)
        if span not in self._steps:
            self._steps[span] = self._compile(latest, position)
        return self._steps[span](latest, position)

    def _compile(self, latest: Tensor, position: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        # PyTorch limits how often the code of a function is compiled: this one's is its own
        code = next_tokens.__code__.replace()
        function = torch.compile(
            FunctionType(code, next_tokens.__globals__), fullgraph=True, dynamic=False
        )

        def step(latest: Tensor, position: Tensor) -> Tensor:
            return self.run(function, latest, position)

        return step if latest.device.type != "cuda" else CapturedStep(step, latest, position)


class CapturedStep:
    """A step recorded on the GPU with its memory, and replayed."""

    def __init__(
        self, step: Callable[[Tensor, Tensor], Tensor], latest: Tensor, position: Tensor
    ) -> None:
        self.latest, self.position = latest.clone(), position.clone()
        stream = torch.cuda.Stream(latest.device)  # which need not be the current device
        stream.wait_stream(torch.cuda.current_stream(latest.device))
        with torch.cuda.stream(stream):  # compiles, and sets aside what kernels need
            for _ in range(3):  # each writes the same keys and values at the same position
                step(self.latest, self.position)
        torch.cuda.current_stream(latest.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # of this thread alone: another may be loading data meanwhile
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.result = step(self.latest, self.position)

    def __call__(self, latest: Tensor, position: Tensor) -> Tensor:
        """Runs the step: see `next_tokens`."""
        self.latest.copy_(latest)
        self.position.copy_(position)
        self.graph.replay()
        return self.result


def key(transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int) -> object:
    """Returns all that a compiled and captured step depends on."""
    kind = prompt.prefix.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    # none moved, converted or replaced
    addresses = [x.data_ptr() for x in (*transformer.parameters(), *transformer.buffers())]
    modes = torch.is_inference_mode_enabled(), autocast
    return id(transformer), addresses, modes, choose.settings, prompt.prefix.shape, num_tokens
