"""Gradients of the latents through the lookup, which itself has none.

Both functions return the codes' values exactly and differ in the backward pass only.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

__all__ = ["GRADIENTS", "rotation", "straight_through"]

MAX_GAIN = 10.0  # of the rotation trick


def straight_through(rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Passes the gradient at the code `(n d)` unchanged to the latent `(n d)`.

    Bengio et al. 2013, "Estimating or Propagating Gradients Through Stochastic Neurons"; van den
    Oord et al. 2017, §3.2.
    """
    return codes.detach() + (rows - rows.detach())


def rotation(rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Turns and scales the gradient at the code as the code is turned and scaled to the latent.

    With unit vectors ê and q̂ of latent e and code q, the code is (‖q‖ / ‖e‖) R e with the rotation
    R = I − 2 r rᵀ + 2 q̂ êᵀ, r = (ê + q̂) / ‖ê + q̂‖; both are constants to the gradient (Fifty et
    al. 2024, "Restructuring Vector Quantization with the Rotation Trick", §4.2).

    Where the code is `MAX_GAIN` times as long as the latent or longer, the gradient goes straight
    through: the direction of so short a latent says little, and the gain ‖q‖ / ‖e‖ has no bound.
    """
    e, q = rows.detach(), codes.detach()
    e_hat, q_hat = F.normalize(e, dim=1), F.normalize(q, dim=1)
    r = F.normalize(e_hat + q_hat, dim=1)  # opposite vectors: 0, and R reflects, which is as good
    e_norm, q_norm = e.norm(dim=1, keepdim=True), q.norm(dim=1, keepdim=True)
    scale = q_norm / e_norm.clamp(min=1e-6)
    rotated = rows - 2 * r * _dot(r, rows) + 2 * q_hat * _dot(e_hat, rows)
    carried = torch.where(q_norm < MAX_GAIN * e_norm, scale * rotated, rows)
    return straight_through(carried, codes)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sum(1, keepdim=True)


GRADIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "straight_through": straight_through,
    "rotation": rotation,
}
