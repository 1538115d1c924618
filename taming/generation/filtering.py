"""From the model's logits to the logits that are sampled: temperature, top-k and top-p.

Pure functions of `(… v)` logits, each row with a finite greatest one. A token that is ruled out
gets -∞. Of equally probable tokens the lower one counts as the more probable, so that the result is
always well defined. Half-precision logits are computed with in float32.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["apply_temperature", "filter_logits", "keep_top_k", "keep_top_p"]


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divides the logits: below 1 probable tokens become more probable, above 1 less.

    The greatest is put to 0 first, which changes no probability and lets no temperature overflow.
    At 1e-30 and below only the most probable tokens are left, at 1e30 and above all that are not
    ruled out are equally probable.
    """
    temperature = min(max(temperature, 1e-30), 1e30)  # in float32 neither 0 nor ∞, nor is 1 / it
    logits = _at_least_float32(logits)
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps the k most probable tokens; all of them where there are no more than k."""
    if k >= logits.shape[-1]:
        return logits
    threshold = logits.topk(k).values[..., -1:]  # (… 1)
    above, level = logits > threshold, logits == threshold  # (… v)
    room = k - above.sum(dim=-1, keepdim=True)  # (… 1), for the first of those on a level with it
    kept = above | (level & (level.cumsum(dim=-1) <= room))
    return logits.masked_fill(~kept, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the fewest most probable tokens whose probabilities sum to at least p.

    Nucleus sampling (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration",
    equation 2). At least one token is kept.
    """
    if p == 1:
        return logits  # whatever rounding makes of the sum
    order = logits.argsort(dim=-1, descending=True, stable=True)  # (… v), most probable first
    probabilities = _at_least_float32(logits).softmax(dim=-1).gather(-1, order)  # (… v)
    reached = probabilities.cumsum(dim=-1) >= p  # (… v), with this token
    reached_before = F.pad(reached[..., :-1], (1, 0))  # (… v), False for the first
    ruled_out = torch.empty_like(reached).scatter(-1, order, reached_before)
    return logits.masked_fill(ruled_out, -torch.inf)


def filter_logits(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Temperature, then top-k, then top-p of what top-k has left; None leaves one out."""
    logits = apply_temperature(logits, temperature)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)
    return logits


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
