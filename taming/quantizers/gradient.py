"""Gradients through the codebook lookup, which has none by definition.

Both functions return the codes exactly and differ only in the backward pass.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["GRADIENTS", "rotation", "straight_through"]

MAX_GAIN = 10.0  # of the rotation trick


def straight_through(rows: Tensor, codes: Tensor) -> Tensor:
    """Passes the gradient of the code `(n d)` unchanged to the latent `(n d)`.

    Bengio et al. 2013, "Estimating or Propagating Gradients Through Stochastic Neurons"; van den
    Oord et al. 2017, section 3.2.
    """
    return codes.detach() + (rows - rows.detach())


def rotation(rows: Tensor, codes: Tensor) -> Tensor:
    """Rotates and scales the gradient of the code `(n d)` for the latent `(n d)`.

    With unit vectors ê and q̂ of latent e and code q, the code is (‖q‖ / ‖e‖) R e. The rotation is
    R = I − 2 r rᵀ + 2 q̂ êᵀ with r = (ê + q̂) / ‖ê + q̂‖. The backward pass treats R and the scale as
    constants (Fifty et al. 2024, "Restructuring Vector Quantization with the Rotation Trick",
    section 4.2).

    The gain ‖q‖ / ‖e‖ has no bound, and the direction of a very short latent means little. From a
    gain of `MAX_GAIN` on, the gradient passes straight through.
    """
    e, q = rows.detach(), codes.detach()
    e_hat, q_hat = F.normalize(e, dim=1), F.normalize(q, dim=1)
    r = F.normalize(e_hat + q_hat, dim=1)  # 0 for opposite vectors: R is then a reflection
    e_norm, q_norm = e.norm(dim=1, keepdim=True), q.norm(dim=1, keepdim=True)
    scale = q_norm / e_norm.clamp(min=1e-6)
    rotated = rows - 2 * r * _dot(r, rows) + 2 * q_hat * _dot(e_hat, rows)
    carried = torch.where(q_norm < MAX_GAIN * e_norm, scale * rotated, rows)
    return straight_through(carried, codes)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1, keepdim=True)


GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "straight_through": straight_through,
    "rotation": rotation,
}
