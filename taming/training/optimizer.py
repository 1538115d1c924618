"""Optimizers and learning-rate schedules, as functions of one step counter."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from taming.errors import UserError

__all__ = ["OptimizerConfig"]


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a learning rate that is a function of the step: a resumed run has it right.

    Attributes:
        learning_rate: peak learning rate.
        betas: of Adam.
        weight_decay: applied to matrices and convolutions, not to biases, norms and other 1-D
            parameters.
        warmup_steps: linear rise from 0 at the start.
        schedule: `"constant"` or `"cosine"` after the warm-up.
        final_fraction: where the cosine ends at `max_steps`, as a fraction of `learning_rate`.
        fused: update all parameters in one kernel.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_steps: int = 0
    schedule: str = "constant"
    final_fraction: float = 0.0
    fused: bool = True

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise UserError(f"optimizer: learning_rate must be positive, not {self.learning_rate}.")
        for name in ("weight_decay", "warmup_steps"):
            if getattr(self, name) < 0:
                raise UserError(f"optimizer: {name} must be 0 or more, not {getattr(self, name)}.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(
                f"optimizer: betas must be at least 0 and below 1, not {list(self.betas)}."
            )
        if not 0 <= self.final_fraction <= 1:
            raise UserError(
                f"optimizer: final_fraction must be from 0 to 1, not {self.final_fraction}."
            )
        if self.schedule not in ("constant", "cosine"):
            raise UserError(
                f"optimizer: schedule is 'constant' or 'cosine', not {self.schedule!r}."
            )

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
        """The optimizer of these parameters, with and without weight decay in two groups.

        It keeps these settings when it loads the state of one that had others: of a resumed run
        they can be changed.
        """
        trained = [p for p in parameters if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        optimizer = torch.optim.AdamW(
            groups,
            lr=self.learning_rate,
            betas=(self.betas[0], self.betas[1]),
            fused=self.fused,
        )
        optimizer.register_load_state_dict_pre_hook(_with_own_settings)
        return optimizer

    def learning_rate_at(self, step: int, max_steps: int) -> float:
        """The learning rate of the update after `step` finished ones, of `max_steps` in all."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        progress = min(1.0, (step - self.warmup_steps) / max(1, max_steps - self.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * (self.final_fraction + (1 - self.final_fraction) * cosine)


def _with_own_settings(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The state to load, with what `OptimizerConfig` sets as in the optimizer that loads it."""
    if len(state["param_groups"]) != len(optimizer.param_groups):
        return state  # which PyTorch refuses
    groups = [
        {**saved, **{name: own[name] for name in ("betas", "weight_decay", "fused")}}
        for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {**state, "param_groups": groups}
