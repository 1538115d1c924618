"""Loading weights that older versions of this program kept in other shapes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["stack_when_loading"]


def stack_when_loading(module: nn.Module, stacked: str, separate: Sequence[str]) -> None:
    """Lets a module load linear layers that were separate in place of one that stacks their rows.

    Args:
        module: the module that has the layer.
        stacked: the layer's name in it.
        separate: names of the separate layers, in the order of their rows.
    """
    module.register_load_state_dict_pre_hook(partial(_stack, stacked=stacked, separate=separate))


def _stack(
    _: nn.Module,
    state: dict[str, Tensor],
    prefix: str,
    *__: Any,
    stacked: str,
    separate: Sequence[str],
) -> None:
    for leaf in ("weight", "bias"):
        names = [f"{prefix}{name}.{leaf}" for name in separate]
        if all(name in state for name in names):
            state[f"{prefix}{stacked}.{leaf}"] = torch.cat([state.pop(name) for name in names])
