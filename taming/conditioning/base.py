"""The interface of all conditionings."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

__all__ = ["Conditioning", "Prompt"]


class Prompt(NamedTuple):
    """What the transformer is given beside the tokens.

    Attributes:
        prefix: `(b p)` int64 ids in front of the tokens.
        context: `(b c)` int64 ids that every layer attends to; None for models without.
    """

    prefix: Tensor
    context: Tensor | None = None

    def and_then(self, other: "Prompt") -> "Prompt":
        """These prompts and then the others."""
        context = None
        if self.context is not None and other.context is not None:
            context = torch.cat([self.context, other.context])
        return Prompt(torch.cat([self.prefix, other.prefix]), context)


class Conditioning(ABC):
    """Turns conditions into ids for the transformer: a prefix, or a context.

    Attributes:
        kind: its name in a generator's config.json.
        num_prefix_ids: number of ids there are, the size of the transformer's prefix embedding.
        prefix_length: ids in front of each sequence.
        num_context_ids: number of context ids there are; 0 for no context.
        num_classes: number of classes there are to ask for; None where there are none.
        class_names: names of the classes in the order of their labels; None where there are none.
        takes_images: whether a condition is an image, which becomes tokens first.
        dropout: share of the conditions that training replaces by "nothing in particular".
    """

    kind: ClassVar[str]
    num_prefix_ids: int
    prefix_length: int
    num_context_ids: int = 0
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    takes_images: ClassVar[bool] = False
    dropout: float = 0.0

    @abstractmethod
    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """What the transformer is given for b conditions.

        Args:
            condition: what is asked for: `(b,)` class labels, or `(b p)` tokens of a condition
                image; None for nothing in particular.
            batch_size: b.
            device: where the ids are to be.

        Raises:
            UserError: if the model cannot be asked for that.
        """

    @abstractmethod
    def check_values(self, condition: Tensor) -> None:
        """Refuses labels or tokens that there are none of, whatever the condition's shape.

        To look at values on a GPU is to wait for it, so `prompt` does it on a CPU alone: what goes
        to a GPU is checked before.

        Raises:
            UserError: if one is out of range.
        """

    @property
    def can_do_without(self) -> bool:
        """Whether the model has learned what images look like that nothing is asked of."""
        return self.dropout > 0

    def drop(self, prompt: Prompt, generator: torch.Generator | None = None) -> Prompt:
        """What training shows instead of a prompt so that the model learns to do without.

        Args:
            prompt: of b sequences.
            generator: source of randomness, on the device of the prompt.
        """
        return prompt

    def _dropped(self, ids: Tensor, nothing: int, generator: torch.Generator | None) -> Tensor:
        """`(b p)` ids, all of a sequence's replaced by `nothing` with probability `dropout`."""
        chance = torch.rand(len(ids), 1, device=ids.device, generator=generator)  # (b 1)
        return ids.masked_fill(chance < self.dropout, nothing)

    def transformer_config(self, grid_size: tuple[int, int]) -> dict[str, Any]:
        """The arguments of a `GPT` that depend on the condition, for tokens of a grid."""
        return {
            "num_prefix_ids": self.num_prefix_ids,
            "prefix_length": self.prefix_length,
            # the last token is predicted but never an input
            "context_length": self.prefix_length + grid_size[0] * grid_size[1] - 1,
            "grid_size": list(grid_size),
        }

    def config(self) -> dict[str, Any]:
        """Plain dictionary from which `conditioning_from_config` rebuilds it."""
        return {"kind": self.kind}
