"""No condition: every sequence begins with the same start id."""

import torch
from torch import Tensor

from taming.conditioning.base import Conditioning, Prompt
from taming.errors import UserError

__all__ = ["Unconditional"]


class Unconditional(Conditioning):
    """The prefix is the id 0, the only one there is."""

    kind = "unconditional"
    num_prefix_ids = 1
    prefix_length = 1

    @property
    def can_do_without(self) -> bool:
        """It knows nothing else."""
        return True

    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """A prefix of `(b 1)` zeros.

        Raises:
            UserError: if a condition is given.
        """
        if condition is not None:
            self.check_values(condition)
        return Prompt(torch.zeros(batch_size, 1, dtype=torch.int64, device=device))

    def check_values(self, condition: Tensor) -> None:
        """Refuses any."""
        raise UserError(
            "this model was trained without conditions and cannot be asked for anything in "
            "particular: leave the condition out, or use a model trained with conditions."
        )
