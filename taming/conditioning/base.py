"""The interface of all conditionings."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from taming.errors import UserError

__all__ = ["Conditioning", "Prompt", "conditioning_from_config"]


class Prompt(NamedTuple):
    """What the transformer reads beside the tokens.

    Attributes:
        prefix: `(b p)` int64 ids in front of the tokens.
        context: `(b c)` int64 ids that every layer attends to; None for models without.
    """

    prefix: Tensor
    context: Tensor | None = None

    def and_then(self, other: "Prompt") -> "Prompt":
        """Returns these prompts followed by the others."""
        context = None
        if self.context is not None and other.context is not None:
            context = torch.cat([self.context, other.context])
        return Prompt(torch.cat([self.prefix, other.prefix]), context)


class Conditioning(ABC):
    """Turns conditions into ids for the transformer: a prefix, or a context.

    Attributes:
        kind: its name in a generator's config.json.
        num_prefix_ids: number of different prefix ids, the size of their embedding.
        prefix_length: ids in front of each sequence.
        num_context_ids: number of different context ids; 0 for no context.
        num_classes: number of classes to choose from; None where there are none.
        class_names: names of the classes in the order of their labels; None where unknown.
        takes_images: whether a condition is an image, which becomes tokens first.
        dropout: share of the conditions that training leaves out, so that the model learns to do
            without.
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
        """Returns what the transformer reads for b conditions, which are not checked.

        Args:
            condition: `(b,)` class labels, or `(b p)` tokens of a condition image; None for no
                condition.
            batch_size: b.
            device: where the ids are to be.
        """

    @abstractmethod
    def check_values(self, condition: Tensor) -> None:
        """Refuses labels or tokens out of range, whatever the condition's shape.

        Looking at values on a GPU means waiting for it: check them before they go there.
        """

    @abstractmethod
    def check(self, condition: Tensor | None, num_images: int) -> None:
        """Raises a `UserError` unless the condition is one for so many images.

        Args:
            condition: `(b,)` class labels, or `(b c H W)` condition images, whose pixels are not
                looked at, or their codes `(b h w)`; None for no condition.
            num_images: b.
        """

    @property
    def can_do_without(self) -> bool:
        """Whether the model has learned what images look like without a condition."""
        return self.dropout > 0

    def drop(self, prompt: Prompt, generator: torch.Generator | None = None) -> Prompt:
        """Leaves out some conditions, as training does.

        Args:
            prompt: of b sequences.
            generator: source of randomness, on the device of the prompt.
        """
        return prompt

    def _dropped(self, ids: Tensor, nothing: int, generator: torch.Generator | None) -> Tensor:
        """Replaces all of a sequence's ids `(b p)` by `nothing` with probability `dropout`."""
        chance = torch.rand(len(ids), 1, device=ids.device, generator=generator)  # (b 1)
        return ids.masked_fill(chance < self.dropout, nothing)

    def transformer_config(self, grid_size: tuple[int, int]) -> dict[str, Any]:
        """Returns the arguments of a `GPTConfig` that depend on condition and code grid."""
        return {
            "num_prefix_ids": self.num_prefix_ids,
            "prefix_length": self.prefix_length,
            # the last token is predicted but never an input
            "context_length": self.prefix_length + grid_size[0] * grid_size[1] - 1,
            "grid_size": grid_size,
        }

    def config(self) -> dict[str, Any]:
        """Returns the plain dictionary from which `conditioning_from_config` rebuilds it."""
        return {"kind": self.kind}


def conditioning_from_config(config: dict[str, Any]) -> Conditioning:
    """Rebuilds a conditioning from what its `config()` returned.

    Raises:
        UserError: if its kind is unknown or its settings are not of that kind.
    """
    settings = dict(config)
    kind = settings.pop("kind", None)
    kinds = {subclass.kind: subclass for subclass in Conditioning.__subclasses__()}
    if kind not in kinds:
        raise UserError(f"conditioning of kind {kind!r} is not one of {', '.join(kinds)}.")
    try:
        return kinds[kind](**settings)
    except TypeError as error:
        raise UserError(f"the config of the conditioning {kind!r} is wrong: {error}.") from error


def check_dropout(dropout: float) -> float:
    """Returns the share of conditions that training leaves out, if it is one."""
    if not 0.0 <= dropout < 1.0:
        raise UserError(f"condition_dropout is {dropout}: it must be at least 0 and less than 1.")
    return dropout
