"""A linear map that is fast on a CPU too, for the few rows of decoding and the many of training."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Linear"]

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(
    torch.ops.mkldnn,
    "_linear_pointwise",  # what compiled code calls, and no part of the public API
)
FEW_ROWS = 7
FEW_ROWS_COMPILED = 32  # compiled code has no oneDNN for weights that may change
WIDE = 256


class Linear(nn.Linear):
    """`nn.Linear`, which it equals, with the fastest product there is in float32 on a CPU.

    A decoding step multiplies a row or two with every weight there is, and is as fast as weights
    can be read. For x Wᵀ with 2 rows PyTorch's BLAS reads them at a fifth of the memory's speed,
    for the same product as (W xᵀ)ᵀ at all of it; a single row is faster as two. With more rows
    oneDNN is faster than that BLAS, by a third at 16 and by a tenth at the thousands of a training
    step, where it takes a wide layer to notice (and gradients are those of `backward` only, not of
    forward mode or `torch.func.vmap`).
    """

    def forward(self, x: Tensor) -> Tensor:
        """`(… in_features)` to `(… out_features)`."""
        num_rows = x.shape[:-1].numel()
        if num_rows == 0 or not self._multiplies_in_float32(x):
            return super().forward(x)
        compiling = torch.compiler.is_compiling()
        if torch.is_grad_enabled():
            wide = min(self.in_features, self.out_features) >= WIDE
            if HAS_ONEDNN and wide and num_rows > FEW_ROWS and not compiling:
                with_gradient: Tensor = OneDNNLinear.apply(x, self.weight, self.bias)
                return with_gradient
            return super().forward(x)
        if compiling or not HAS_ONEDNN:
            return self._swapped(x) if num_rows <= FEW_ROWS_COMPILED else super().forward(x)
        return self._swapped(x) if num_rows <= FEW_ROWS else onednn(x, self.weight, self.bias)

    def _multiplies_in_float32(self, x: Tensor) -> bool:
        """Whether this is on a CPU, in plain float32."""
        return (
            x.device.type == self.weight.device.type == "cpu"
            and x.dtype == self.weight.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            and not torch.jit.is_tracing()
        )

    def _swapped(self, x: Tensor) -> Tensor:
        """(W xᵀ)ᵀ."""
        num_rows = x.shape[:-1].numel()
        columns = x.reshape(num_rows, -1)  # (n in), to be read as (in n)
        if num_rows == 1:
            columns = F.pad(columns, (0, 0, 0, 1))
        if self.bias is None:
            product = self.weight @ columns.t()  # type: ignore[unreachable]  # (out n)
        else:
            product = torch.addmm(self.bias[:, None], self.weight, columns.t())
        return product[:, :num_rows].t().contiguous().view(*x.shape[:-1], self.out_features)


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Gives x Wᵀ + b, `(… in)` to `(… out)`, without a gradient."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class OneDNNLinear(torch.autograd.Function):
    """`onednn` with gradients: oneDNN's too for x, but for W a product that BLAS is as fast at."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Gives x Wᵀ + b."""
        return onednn(x, weight, bias)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor
    ) -> None:
        """Keeps x and W."""
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of what is asked for: G W, Gᵀ x and the sum of G's rows."""
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        multiply = OneDNNLinear.apply if torch.is_grad_enabled() else onednn
        rows = gradient.flatten(0, -2)
        return (
            multiply(gradient, weight.t(), None) if for_x else None,
            rows.t() @ x.flatten(0, -2) if for_weight else None,
            rows.sum(0) if for_bias else None,
        )
