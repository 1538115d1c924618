"""A frozen network inside a trained module."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn

__all__ = ["FrozenNetwork"]


class FrozenNetwork(nn.Module):
    """Holds a pretrained network that is used but not trained.

    It moves with the module it is part of, stays in evaluation mode (its dropout off) whatever that
    module does, shows its weights to no optimizer, and keeps them out of checkpoints: they are not
    the run's, and can be larger than everything that is.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._hidden = [network.eval().requires_grad_(False)]  # a list: not registered

    @property
    def network(self) -> nn.Module:
        """The network itself."""
        return self._hidden[0]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.network._apply(fn, recurse)
        return self

    def forward(self, *args: Any) -> Any:
        """Calls the network."""
        return self.network(*args)
