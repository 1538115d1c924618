"""The interface of all conditionings, and unconditional models."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from annotated_types import Ge, Lt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from taming.runtime.errors import UserError
from taming.serialization.arguments import describe_error

__all__ = ["Condition", "Conditioning", "Prompt", "Unconditional", "conditioning_from_config"]

Condition = Tensor | str | Sequence[str] | None
Dropout = Annotated[float, Ge(0), Lt(1)]
STRICT = ConfigDict(extra="forbid")


class Prompt(NamedTuple):
    """The ids of a condition, which the transformer reads in addition to the tokens."""

    prefix: Tensor  # (b p) int64 ids in front of the tokens
    context: Tensor | None = None  # (b c) int64 ids that every layer attends to; None: no context

    def concatenate(self, other: "Prompt") -> "Prompt":
        """Concatenates two batches of prompts."""
        context = None
        if self.context is not None and other.context is not None:
            context = torch.cat([self.context, other.context])
        return Prompt(torch.cat([self.prefix, other.prefix]), context)

    def rows(self, rows: slice) -> "Prompt":
        """Returns these prompts of the batch."""
        return Prompt(self.prefix[rows], None if self.context is None else self.context[rows])


class Conditioning(ABC):
    """Turns conditions into ids for the transformer: a prefix or a context.

    Subclasses are dataclasses. A saved generator stores their fields and kind.
    """

    kind: ClassVar[str]  # name in a generator's config.json
    takes_images: ClassVar[bool] = False  # whether conditions are images, which become tokens
    grid_size: tuple[int, int]  # (height, width) of a condition image's code grid
    num_prefix_ids: int = 1  # number of prefix ids, the size of their embedding table
    prefix_length: int = 1  # ids in front of each sequence
    num_context_ids: int = 0  # number of context ids; 0: no context
    num_classes: int | None = None  # number of classes; None without classes
    class_names: Sequence[str] | None = None  # in the order of the labels; None if unknown
    condition_description: str = ""  # describes a valid condition, for messages
    # share of the conditions that training replaces by "no condition", so that the model learns to
    # generate images without one
    dropout: float = 0.0
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def can_do_without(self) -> bool:
        """Whether the model can generate images without a condition."""
        return self.dropout > 0

    @abstractmethod
    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """Builds the prompts of b conditions, without checking them.

        Args:
            condition: `(b,)` class labels, or `(b p)` tokens of condition images; None for "no
                condition".
            batch_size: b.
            device: device of the ids.
        """

    def check(self, condition: Condition, num_images: int) -> Tensor | None:
        """Checks a condition and returns it as a tensor; class names become labels.

        Args:
            condition: `(b,)` class labels, class names, or one name for all images; or `(b c H W)`
                condition images, whose pixels are not checked, or their indices `(b h w)`; None
                for no condition.
            num_images: b.

        Raises:
            UserError: if this is not a condition of this model for each image.
        """
        if condition is None:
            if self.can_do_without:
                return None
            problem = (
                "this model needs a condition, because it was trained without condition_dropout"
            )
        elif isinstance(condition, Tensor) and self.fits(condition, num_images):
            return condition
        elif isinstance(condition, Tensor):
            problem = f"the condition is {condition.dtype} of shape {tuple(condition.shape)}"
        else:
            problem = f"the condition is {condition!r}"
        raise UserError(
            f"{problem}. Give {self.condition_description} for each of {num_images} images."
        )

    def fits(self, condition: Tensor, num_images: int) -> bool:
        """Whether a tensor has the dtype and shape of conditions for `num_images` images.

        Raises:
            UserError: if labels or tokens are out of range.
        """
        return False

    def drop(self, prompt: Prompt, generator: torch.Generator | None = None) -> Prompt:
        """Replaces each prompt by "no condition" with probability `dropout`."""
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
        """Returns the fields of `GPTConfig` that depend on condition and code grid."""
        return {
            "num_prefix_ids": self.num_prefix_ids,
            "prefix_length": self.prefix_length,
            # the last token is predicted but never an input
            "context_length": self.prefix_length + grid_size[0] * grid_size[1] - 1,
            "grid_size": grid_size,
        }

    def config(self) -> dict[str, Any]:
        """Returns the plain dictionary that `conditioning_from_config` reads."""
        settings: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples as lists
        return {"kind": self.kind, **settings}


@dataclass(config=STRICT)
class Unconditional(Conditioning):
    """Models without conditions: the prefix is the only id, 0."""

    kind = "unconditional"
    can_do_without = True

    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """Returns a prefix of `(b 1)` zeros."""
        return Prompt(torch.zeros(batch_size, 1, dtype=torch.int64, device=device))

    def check(self, condition: Condition, num_images: int) -> None:
        """Refuses any condition."""
        if condition is not None:
            raise UserError("this model was trained without conditions. Leave the condition out.")


def conditioning_from_config(config: dict[str, Any]) -> Conditioning:
    """Rebuilds a conditioning from its `config()`.

    Raises:
        UserError: if the kind is unknown or its settings are wrong.
    """
    settings = dict(config)
    kind = settings.pop("kind", None)
    kinds = {subclass.kind: subclass for subclass in Conditioning.__subclasses__()}
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"the conditioning kind {kind!r} is not one of {', '.join(kinds)}.")
    try:
        return kinds[kind](**settings)
    except ValueError as error:
        raise UserError(f"the conditioning {kind!r} is wrong: {describe_error(error)}.") from error
