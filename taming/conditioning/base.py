"""The interface of all conditionings, and the one without conditions."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from taming.errors import UserError

__all__ = ["Conditioning", "Prompt", "Unconditional", "conditioning_from_config"]


class Prompt(NamedTuple):
    """What the transformer reads beside the tokens."""

    prefix: Tensor  # (b p) int64 ids in front of the tokens
    context: Tensor | None = None  # (b c) int64 ids that every layer attends to, if the model does

    def and_then(self, other: "Prompt") -> "Prompt":
        """Returns these prompts followed by the others."""
        context = None
        if self.context is not None and other.context is not None:
            context = torch.cat([self.context, other.context])
        return Prompt(torch.cat([self.prefix, other.prefix]), context)


class Conditioning(ABC):
    """Turns conditions into ids for the transformer: a prefix, or a context.

    A subclass is a dataclass: its fields, and its kind, are what is saved of it.
    """

    kind: ClassVar[str]  # its name in a generator's config.json
    takes_images: ClassVar[bool] = False  # a condition is an image, which becomes tokens first
    num_prefix_ids: int = 1  # number of different prefix ids, the size of their embedding
    prefix_length: int = 1  # ids in front of each sequence
    num_context_ids: int = 0  # number of different context ids; 0 for no context
    num_classes: int | None = None  # number of classes to choose from; None where there are none
    class_names: Sequence[str] | None = None  # in the order of their labels; None where unknown
    # share of the conditions that training replaces by "no condition": only with some does the
    # model learn to draw images without one
    dropout: float = 0.0
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(
                f"condition_dropout is {self.dropout}: it must be at least 0 and less than 1."
            )

    @abstractmethod
    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """Returns what the transformer reads for b conditions, which are not checked.

        Args:
            condition: `(b,)` class labels, or `(b p)` tokens of a condition image; None for "no
                condition".
            batch_size: b.
            device: where the ids are to be.
        """

    @abstractmethod
    def check_values(self, condition: Tensor) -> None:
        """Raises a `UserError` for labels or tokens out of range, whatever their shape.

        Looking at values on a GPU means waiting for it: check them before they go there.
        """

    @abstractmethod
    def check(self, condition: Tensor | None, num_images: int) -> None:
        """Raises a `UserError` unless this is a condition for each of so many images.

        A condition is `(b,)` class labels, or `(b c H W)` condition images, whose pixels are not
        looked at, or their codes `(b h w)`; None for no condition.
        """

    @property
    def can_do_without(self) -> bool:
        """Whether the model has learned what images look like without a condition."""
        return self.dropout > 0

    def check_absence(self, needed: str) -> None:
        """Raises a `UserError` if the model cannot do without what is needed."""
        if not self.can_do_without:
            raise UserError(
                "this model was trained without condition_dropout and has not learned to do "
                f"without a condition: give {needed}."
            )

    def drop(self, prompt: Prompt, generator: torch.Generator | None = None) -> Prompt:
        """Replaces each prompt by that of "no condition" with probability `dropout`."""
        if self.dropout == 0.0:
            return prompt
        batch_size, device = len(prompt.prefix), prompt.prefix.device
        dropped = torch.rand(batch_size, 1, device=device, generator=generator) < self.dropout
        nothing = self.prompt(None, batch_size, device)
        prefix, context = torch.where(dropped, nothing.prefix, prompt.prefix), None
        if prompt.context is not None and nothing.context is not None:
            context = torch.where(dropped, nothing.context, prompt.context)
        return Prompt(prefix, context)

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
        settings: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples as lists
        return {"kind": self.kind, **settings}


@dataclass
class Unconditional(Conditioning):
    """The prefix is the id 0, the only one there is; the model knows no conditions."""

    kind = "unconditional"
    can_do_without = True

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
