"""Exponential moving average of a model's weights."""

import copy
from typing import Any

import torch
from torch import nn

__all__ = ["ExponentialMovingAverage"]


class ExponentialMovingAverage(nn.Module):
    """A second copy of a model whose weights follow the first one's smoothly.

    θ̄ ← d θ̄ + (1 − d) θ after each step, with d = min(decay, (1 + n) / (10 + n)) after n updates,
    so that the random first weights are soon forgotten. Buffers are copied, not averaged.

    Attributes:
        model: the averaged model, always in evaluation mode.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        self.num_updates: torch.Tensor
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))
        self._updates = (
            0  # the same number on the host: reading the buffer would wait for the device
        )

    def train(self, mode: bool = True) -> "ExponentialMovingAverage":
        """Stays in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Moves the average towards `model`'s present weights."""
        decay = min(self.decay, (1 + self._updates) / (10 + self._updates))
        averages: list[torch.Tensor] = list(self.model.parameters())
        weights: list[torch.Tensor] = [w.detach() for w in model.parameters()]
        torch._foreach_lerp_(averages, weights, 1 - decay)
        for average, buffer in zip(self.model.buffers(), model.buffers(), strict=True):
            average.copy_(buffer)
        self._updates += 1
        self.num_updates.fill_(self._updates)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._updates = int(self.num_updates)
