"""Compiled decoding: steps through `torch.compile`, and on GPUs recorded as graphs."""

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Self

import torch
from torch import Tensor

from taming.conditioning import Prompt
from taming.generation.choice import TokenChoice
from taming.generation.decoding import Decoder, next_tokens, round_up
from taming.runtime.contexts import without_cudnn_attention
from taming.transformer import GPT

__all__ = ["CapturedStep", "CompiledDecoder"]

Step = Callable[[Tensor, Tensor], Tensor]  # see `next_tokens`


class CompiledDecoder(Decoder):
    """Decodes with a step that it compiles at its first call, which takes a while.

    A step is small. Without compilation, most of its time goes into starting operations. A step
    attends to the first 64 positions, 128, 192 and so on; one compilation serves every span. On
    GPUs each span is also captured as a graph, so the cache and the random numbers stay in the same
    memory from batch to batch.
    """

    def __init__(
        self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int
    ) -> None:
        super().__init__(transformer, choose.clone(), prompt, num_tokens)
        self._compiled: dict[bool, Callable[..., Tensor]] = {}  # by whether a token is guided
        self._captured: dict[tuple[bool, int], CapturedStep] = {}  # and by number of positions
        self._key = _key(transformer, choose, prompt, num_tokens)

    @classmethod
    def reuse(
        cls,
        earlier: Self | None,
        transformer: GPT,
        choose: TokenChoice,
        prompt: Prompt,
        num_tokens: int,
    ) -> Self:
        """Returns the earlier decoder with the new choice if it fits, or else a new decoder."""
        if earlier is None or not earlier.fits(transformer, choose, prompt, num_tokens):
            return cls(transformer, choose, prompt, num_tokens)
        earlier.choose.copy_(choose)
        return earlier

    def fits(self, *arguments: Any) -> bool:
        """Whether this decoder can be reused for these constructor arguments."""
        return self._key == _key(*arguments)

    @without_cudnn_attention()
    def step(self, latest: Tensor, number: int, guided: bool) -> Tensor:
        """See `Decoder`."""
        end = self.num_prefix + number
        position = self.positions[end - 1 : end]
        span = round_up(end)
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
        # a copy, because PyTorch limits how often it compiles the code of one function
        function = FunctionType(next_tokens.__code__.replace(), next_tokens.__globals__)
        return torch.compile(function, fullgraph=True, dynamic=False)

    def _captures(self, device: torch.device) -> bool:
        return device.type == "cuda"


class CapturedStep:
    """A step recorded on the GPU with its memory, and replayed.

    Steps share the memory of the `first` one. The caller uses the result of each before it calls
    another. They share its stream as well, because memory is reused on the stream that allocated
    it.
    """

    stream: torch.cuda.Stream  # of a device that need not be the current one
    graph: torch.cuda.CUDAGraph

    def __init__(
        self, step: Step, latest: Tensor, position: Tensor, first: "CapturedStep | None" = None
    ) -> None:
        self.latest, self.position = latest.clone(), position.clone()
        self.stream = torch.cuda.Stream(latest.device) if first is None else first.stream
        stream, pool = self.stream, None if first is None else first.graph.pool()
        stream.wait_stream(torch.cuda.current_stream(latest.device))
        with torch.cuda.stream(stream):  # compiles, and allocates what kernels need
            for _ in range(3):  # each writes the same keys and values at the same position
                step(self.latest, self.position)
        torch.cuda.current_stream(latest.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # only this thread: another thread may be loading data
        with torch.cuda.graph(self.graph, pool, stream, capture_error_mode="thread_local"):
            self.result = step(self.latest, self.position)

    def __call__(self, latest: Tensor, position: Tensor) -> Tensor:
        """Runs the step: see `next_tokens`."""
        self.latest.copy_(latest)
        self.position.copy_(position)
        self.graph.replay()
        return self.result


def _key(transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int) -> object:
    """Returns everything that a compiled and captured step depends on."""
    kind = prompt.prefix.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    # these change when a weight is moved, converted or replaced
    addresses = [x.data_ptr() for x in (*transformer.parameters(), *transformer.buffers())]
    modes = torch.is_inference_mode_enabled(), autocast
    return id(transformer), addresses, modes, choose.settings, prompt.prefix.shape, num_tokens
