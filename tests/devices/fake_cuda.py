"""A pretended GPU: "cuda" tensors that have no values, and notes of what would wait for a real one.

Shapes, dtypes and devices of every operation are worked out as a GPU would have them, so that
tensors forgotten on the CPU are actual where there is no GPU. Backward passes cannot be pretended.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric

aten = torch.ops.aten
Model = TypeVar("Model", bound=nn.Module)


class Watch(TorchDispatchMode):
    """Notes what a program asks of a GPU that is not there.

    Attributes:
        waits: operations whose result the program reads, for which it waits for the GPU.
        uploads: operations that bring a tensor from the CPU.
        scalars: operations with a number that is a tensor on the CPU: a recorded graph would keep
            its value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.uploads: list[str] = []
        self.scalars: list[str] = []

    def forget(self) -> None:
        for notes in (self.waits, self.uploads, self.scalars):
            notes.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_gpu = [x for x in tensors if x.device.type == "cuda"]
        name = str(func)
        if func in (aten._local_scalar_dense.default, aten.nonzero.default):
            # a pretended tensor has no values: a number is 0, and nothing is not 0
            if on_gpu:
                self.waits.append(name)
            if func is aten.nonzero.default:
                return args[0].new_empty(0, args[0].ndim, dtype=torch.int64)
            return _zero(args[0])
        if func is aten.index.Tensor:
            devices = {index.device for index in args[1] if index is not None}
            assert devices == {args[0].device}, "indices elsewhere"
        result = func(*args, **kwargs)
        if func is aten._to_copy.default and result.device != args[0].device:
            (self.uploads if result.device.type == "cuda" else self.waits).append(name)
        elif func is aten.copy_.default and args[0].device != args[1].device:
            (self.uploads if args[0].device.type == "cuda" else self.waits).append(name)
        elif on_gpu and len(on_gpu) < len(tensors):
            self.scalars.append(name)
        return result


def _zero(tensor: torch.Tensor) -> bool | int | float:
    if tensor.dtype == torch.bool:
        return False
    return 0.0 if tensor.is_floating_point() else 0


@contextmanager
def fake_cuda(*, bf16: bool = False) -> Iterator[Watch]:
    """Within it tensors have no values, and may be on the device "cuda".

    Args:
        bf16: with autocast there, as training has it.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.set_autocast_enabled("cuda", bf16)  # `torch.autocast` would look for a GPU
        try:
            yield watch
        finally:
            torch.set_autocast_enabled("cuda", False)


def to_cuda(model: Model, dtype: torch.dtype | None = None) -> Model:
    """What `model.to("cuda", dtype)` does, which PyTorch cannot do with pretended tensors."""
    moved: dict[torch.Tensor, torch.Tensor] = {}  # by identity: a tied weight stays tied
    for module in model.modules():
        if isinstance(module, Metric):
            module.to("cuda")
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if tensor not in moved:
                    keeps_dtype = dtype is None or not tensor.is_floating_point()
                    there = tensor.detach().to("cuda", None if keeps_dtype else dtype)
                    if isinstance(tensor, nn.Parameter):
                        there = nn.Parameter(there, requires_grad=tensor.requires_grad)
                    moved[tensor] = there
                tensors[name] = moved[tensor]
    return model


def everywhere_cuda(result: Any) -> bool:
    """Whether all tensors in it are there."""
    tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    return bool(tensors) and all(x.device.type == "cuda" for x in tensors)
