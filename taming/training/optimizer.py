"""AdamW and its learning-rate schedule."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import nn

__all__ = ["OptimizerConfig", "build_optimizer"]

Beta = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of AdamW for one network.

    Attributes:
        learning_rate: peak learning rate.
        betas: decay rates of Adam's two moments.
        weight_decay: weight decay of matrices and convolutions, but not of biases, norms and other
            1-D parameters.
        warmup_steps: steps of the linear rise from 0 at the start.
        schedule: schedule after the warm-up.
        final_fraction: end of the cosine, as a fraction of `learning_rate`.
        fused: whether to update all parameters in one kernel.
    """

    learning_rate: Annotated[float, Gt(0)]
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: Annotated[float, Ge(0)] = 0.0
    warmup_steps: Annotated[int, Ge(0)] = 0
    schedule: Literal["constant", "cosine"] = "constant"
    final_fraction: Annotated[float, Ge(0), Le(1)] = 0.0
    fused: bool = True

    def parameter_groups(self, network: nn.Module, **labels: Any) -> list[dict[str, Any]]:
        """Returns AdamW's groups of trained parameters, with and without weight decay."""
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for parameter in network.parameters():
            if parameter.requires_grad:
                groups[getattr(parameter, "is_matrix", parameter.ndim > 1)].append(parameter)
        return [
            {
                "params": parameters,
                "lr": self.learning_rate,
                "betas": tuple(self.betas),
                "weight_decay": self.weight_decay if are_matrices else 0.0,
                **labels,
            }
            for are_matrices, parameters in groups.items()
            if parameters
        ]

    def factor(self, step: int, max_steps: int) -> float:
        """Returns the share of the peak learning rate in the step after `step` completed ones."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        progress = min(1.0, (step - self.warmup_steps) / max(1, max_steps - self.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.final_fraction + (1 - self.final_fraction) * cosine


def build_optimizer(groups: Iterable[dict[str, Any]], *, fused: bool) -> torch.optim.AdamW:
    """Builds AdamW over parameter groups.

    Loading a state keeps the settings of the optimizer and the memory format of its parameters,
    because a resumed run may change both.
    """
    # None, because False also turns off the foreach update, PyTorch's default on GPUs
    optimizer = torch.optim.AdamW(groups, fused=fused or None)
    optimizer.register_load_state_dict_pre_hook(_keep_settings)
    optimizer.register_load_state_dict_post_hook(_match_memory_format)
    return optimizer


def _keep_settings(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    groups = [
        {**saved, **{name: value for name, value in group.items() if name != "params"}}
        for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {**state, "param_groups": groups}


@torch.no_grad()
def _match_memory_format(optimizer: torch.optim.Optimizer) -> None:
    # the fused kernel reads weights and moments in memory order
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter).copy_(value)
