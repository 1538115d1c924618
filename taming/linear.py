"""A linear map that is also fast for the few rows of a decoding step."""

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


class Linear(nn.Linear):
    """`nn.Linear`, which it equals, with the fastest product there is for inference on a CPU.

    A decoding step multiplies a row or two with every weight there is, and is as fast as weights
    can be read. For x Wᵀ with 2 rows PyTorch's BLAS reads them at a fifth of the memory's speed,
    for the same product as (W xᵀ)ᵀ at all of it; a single row is faster as two. With more rows
    oneDNN is faster than that BLAS, by a third at 16.
    """

    def forward(self, x: Tensor) -> Tensor:
        """`(… in_features)` to `(… out_features)`."""
        num_rows = x.shape[:-1].numel()
        if num_rows == 0 or not self._infers_in_float32(x):
            return super().forward(x)
        if torch.compiler.is_compiling() or not HAS_ONEDNN:
            return self._swapped(x) if num_rows <= FEW_ROWS_COMPILED else super().forward(x)
        if num_rows <= FEW_ROWS:
            return self._swapped(x)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, "none", [], ""
        )
        return product

    def _infers_in_float32(self, x: Tensor) -> bool:
        """Whether it is asked for no gradient, on a CPU, in plain float32."""
        return (
            x.device.type == self.weight.device.type == "cpu"
            and x.dtype == self.weight.dtype == torch.float32
            and not torch.is_grad_enabled()
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
