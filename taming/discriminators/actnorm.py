"""Activation normalisation (Kingma & Dhariwal 2018, "Glow", section 3.1)."""

from typing import Any

import torch
from torch import Tensor, nn

from taming.runtime.dtypes import at_least_float32
from taming.runtime.process_group import mean_over_ranks

__all__ = ["ActNorm"]


class ActNorm(nn.Module):
    """y = s ⊙ x + b with a learned scale s and shift b per channel.

    The first training batch (of all ranks) sets s and b so that every channel of y has mean 0 and
    variance 1. From then on they are ordinary parameters, and a result depends on no other image.
    Evaluation mode initialises nothing.

    Args:
        num_channels: c of the input `(b c h w)`.

    Attributes:
        initialised: bool scalar, a buffer.
        track_running_stats: as for batch normalisation. If False, an uninitialised layer normalises
            a training batch without initialising (see `frozen`).
    """

    EPSILON = 1e-5  # added to the variance, so that a constant channel stays finite

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_channels))
        self.shift = nn.Parameter(torch.zeros(num_channels))
        self.initialised: Tensor
        self.register_buffer("initialised", torch.tensor(False))
        self.track_running_stats = True
        self._ready = False  # on the host, because reading the buffer would wait for the GPU

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(b c h w)` to `(b c h w)`."""
        scale: Tensor = self.scale
        shift: Tensor = self.shift
        if self.training and not self._ready:
            first_scale, first_shift = self._normalising(x)
            if self.track_running_stats:
                self._initialise(first_scale, first_shift)
            else:
                scale, shift = first_scale, first_shift
        scale, shift = (row.to(x.dtype).view(-1, 1, 1) for row in (scale, shift))
        return x * scale + shift

    @torch.no_grad()
    def _normalising(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the scale and shift `(c,)` that normalise `(b c h w)`."""
        x = at_least_float32(x)
        mean = mean_over_ranks(x.mean((0, 2, 3)))
        variance = mean_over_ranks((x - mean.view(-1, 1, 1)).square().mean((0, 2, 3)))
        scale = (variance + self.EPSILON).rsqrt()
        return scale, -mean * scale

    @torch.no_grad()
    def _initialise(self, scale: Tensor, shift: Tensor) -> None:
        self.scale.copy_(scale)
        self.shift.copy_(shift)
        self.initialised.fill_(True)
        self._ready = True

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._ready = bool(self.initialised)
