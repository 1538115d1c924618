"""No condition: every sequence begins with the same start id."""

from dataclasses import dataclass

import torch
from torch import Tensor

from taming.conditioning.base import Conditioning, Prompt
from taming.errors import UserError

__all__ = ["Unconditional"]


@dataclass
class Unconditional(Conditioning):
    """The prefix is the id 0, the only one there is."""

    kind = "unconditional"

    @property
    def can_do_without(self) -> bool:
        """Always: the model knows nothing else."""
        return True

    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """Returns a prefix of `(b 1)` zeros."""
        return Prompt(torch.zeros(batch_size, 1, dtype=torch.int64, device=device))

    def check_values(self, condition: Tensor) -> None:
        """Refuses any condition."""
        raise UserError(
            "this model was trained without conditions: leave the condition out, or use a model "
            "trained with conditions."
        )

    def check(self, condition: Tensor | None, num_images: int) -> None:
        """Refuses any condition."""
        if condition is not None:
            self.check_values(condition)
