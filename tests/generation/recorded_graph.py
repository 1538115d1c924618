"""A pretended CUDA graph: the operations on the CPU, recorded and replayed in the same memory.

As on a GPU no Python runs in a replay: a number or a tensor that was there when it was recorded
stays, whatever the program has instead by then.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from taming.generation.compiled import CompiledDecoder
from taming.generation.decoding import next_tokens


class RecordedGraph(TorchDispatchMode):
    """Stands for `torch.cuda.CUDAGraph`; it records while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.num_replays = 0
        self.stream: Any = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor | tuple):
            self.calls.append((func, args, kwargs, result))
        return result

    def pool(self) -> Any:
        """Stands for its memory: only graphs of the same stream can share it."""
        return self.stream

    def replay(self) -> None:
        self.num_replays += 1
        for func, args, kwargs, result in self.calls:
            new = func(*args, **kwargs)
            for there, value in zip(tree_leaves(result), tree_leaves(new), strict=True):
                if there.data_ptr() != value.data_ptr():  # no view, and not in place
                    there.copy_(value)


def record_graphs(patch: pytest.MonkeyPatch) -> None:
    """Lets compiled steps go through graphs on the CPU, not compiled."""

    def new_stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: None)

    def graph(graph: RecordedGraph, pool: Any, stream: Any, **settings: Any) -> RecordedGraph:
        assert pool is None or pool is stream
        graph.stream = stream
        return graph

    patch.setattr(CompiledDecoder, "_compile", lambda self: next_tokens)
    patch.setattr(CompiledDecoder, "_captures", lambda self, device: True)
    patch.setattr(torch.cuda, "Stream", new_stream)
    patch.setattr(torch.cuda, "current_stream", new_stream)
    patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    patch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    patch.setattr(torch.cuda, "graph", graph)
