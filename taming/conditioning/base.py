"""The interface of all conditionings."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from taming.errors import UserError

__all__ = ["Conditioning"]


class Conditioning(ABC):
    """Turns conditions into the prefix ids that stand before the tokens.

    Attributes:
        kind: its name in a generator's config.json.
        num_prefix_ids: number of ids there are, the size of the transformer's prefix embedding.
        prefix_length: ids in front of each sequence.
        num_classes: number of classes there are to ask for; None where there are none.
        class_names: names of the classes in the order of their labels; None where there are none.
    """

    kind: ClassVar[str]
    num_prefix_ids: int
    prefix_length: int
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None

    @abstractmethod
    def prefix(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Tensor:
        """The prefix of each sequence, `(b p)` int64.

        Args:
            condition: what is asked for, b of them; None for nothing in particular.
            batch_size: b.
            device: where the prefix is to be.

        Raises:
            UserError: if the model cannot be asked for that.
        """

    def drop(self, prefix: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What training shows instead of `prefix` so that the model learns to do without.

        Args:
            prefix: `(b p)`.
            generator: source of randomness, on the device of `prefix`.
        """
        return prefix

    def with_class_names(self, class_names: Sequence[str]) -> "Conditioning":
        """A copy that knows the names of its classes."""
        raise UserError(f"a model of kind {self.kind!r} has no classes that could have names.")

    def config(self) -> dict[str, Any]:
        """Plain dictionary from which `conditioning_from_config` rebuilds it."""
        return {"kind": self.kind}
