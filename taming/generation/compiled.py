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

Step = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # see `next_tokens`
Kind = tuple[bool, int, int]  # of a step: is it guided, how many tokens does it read, and draw


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
        self._compiled: dict[Kind, Callable[..., Tensor]] = {}
        self._captured: dict[tuple[Kind, int], CapturedStep] = {}  # by number of positions, too
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
    def step(
        self, latest: Tensor, start: int, end: int, guided: bool, cells: Tensor | None
    ) -> Tensor:
        """See `Decoder`."""
        last = self.num_prefix + end - 1
        kind = guided, latest.shape[1], end - start
        positions = self.positions[last - kind[1] - kind[2] + 1 : last]
        span = round_up(last)
        visible = self.positions[:span]
        torch._dynamo.mark_dynamic(visible, 0)  # or each span would be compiled
        if kind not in self._compiled:
            self._compiled[kind] = self._compile()
        step = partial(self._run, self._compiled[kind], guided, visible)
        cells = None if cells is None else cells.contiguous()  # strides would be compiled, too
        if not self._captures(latest.device):
            return step(latest, positions, cells)
        if (kind, span) not in self._captured:
            first = next(iter(self._captured.values()), None)
            self._captured[kind, span] = CapturedStep(step, latest, positions, cells, first)
        return self._captured[kind, span](latest, positions, cells)

    def _run(
        self,
        function: Callable[..., Tensor],
        guided: bool,
        visible: Tensor,
        latest: Tensor,
        positions: Tensor,
        cells: Tensor | None,
    ) -> Tensor:
        return self.run(function, guided, latest, positions, visible, cells)

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
        self,
        step: Step,
        latest: Tensor,
        positions: Tensor,
        cells: Tensor | None = None,
        first: "CapturedStep | None" = None,
    ) -> None:
        self.latest, self.positions = latest.clone(), positions.clone()
        self.cells = None if cells is None else cells.clone()
        self.stream = torch.cuda.Stream(latest.device) if first is None else first.stream
        stream, pool = self.stream, None if first is None else first.graph.pool()
        stream.wait_stream(torch.cuda.current_stream(latest.device))
        with torch.cuda.stream(stream):  # compiles, and allocates what kernels need
            for _ in range(3):  # each writes the same keys and values at the same position
                step(self.latest, self.positions, self.cells)
        torch.cuda.current_stream(latest.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # only this thread: another thread may be loading data
        with torch.cuda.graph(self.graph, pool, stream, capture_error_mode="thread_local"):
            self.result = step(self.latest, self.positions, self.cells)

    def __call__(self, latest: Tensor, positions: Tensor, cells: Tensor | None = None) -> Tensor:
        """Runs the step: see `next_tokens`."""
        self.latest.copy_(latest)
        self.positions.copy_(positions)
        if self.cells is not None and cells is not None:
            self.cells.copy_(cells)
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
