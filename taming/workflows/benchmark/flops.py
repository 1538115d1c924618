"""Floating-point operations of whatever is called."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, register_flop_formula

from taming.linear import HAS_ONEDNN

__all__ = ["count_flops"]


def count_flops(call: Callable[[], object]) -> int:
    """Operations of matrix products, convolutions and attention in one call, by PyTorch's formulas.

    Backward passes inside it are included, and compiled parts run uncompiled. Attention counts
    whole, causal or not, as is usual (Chowdhery et al. 2022, "PaLM", appendix B). The products
    only: what normalisations and activations add is little, and left out of a device's peak too.
    """
    with torch.compiler.set_stance("force_eager"), _Counter() as counter:
        call()
    return counter.total


class _Counter(TorchDispatchMode):
    # PyTorch's own FlopCounterMode also follows modules by hooks, which fail in a step that asks
    # for the gradient of a leaf (`torch.autograd.grad`), as ours does

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func is not torch.ops.prim.device.default:
            with self:  # in inference mode composite operations arrive whole
                result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result)
        return result


def _linear_flops(x: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * x.numel() * weight[0]


if HAS_ONEDNN and torch.ops.mkldnn._linear_pointwise not in flop_registry:  # PyTorch has none yet
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_linear_flops)
