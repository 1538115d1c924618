"""Training and evaluation mode of modules."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluation_mode"]


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Puts a module into eval mode, and afterwards each of its parts back into its own mode."""
    training_parts = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training_parts:
            part.training = True
