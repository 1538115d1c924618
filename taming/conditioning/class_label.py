"""Class labels as conditions."""

from collections.abc import Sequence
from typing import Annotated, Protocol

import torch
from annotated_types import Ge
from pydantic.dataclasses import dataclass
from torch import Tensor

from taming.conditioning.base import STRICT, Condition, Conditioning, Dropout, Prompt
from taming.runtime.errors import UserError, join_names

__all__ = ["ClassLabel", "class_difference"]


@dataclass(config=STRICT)
class ClassLabel(Conditioning):
    """The prefix is the class label; one more id, the last, stands for "no class"."""

    kind = "class_label"

    num_classes: Annotated[int, Ge(1)]  # labels are 0 to num_classes - 1
    dropout: Dropout = 0.0  # share of the labels that training replaces by "no class"
    class_names: Sequence[str] | None = None  # to choose classes by name, and for reports

    def __post_init__(self) -> None:
        self.num_prefix_ids = self.num_classes + 1

    @property
    def condition_description(self) -> str:  # type: ignore[override]
        """Describes the valid labels, for messages."""
        text = f"a class label from 0 to {self.num_classes - 1}"
        if self.class_names is None:
            return text
        named = [f"{label} {name}" for label, name in enumerate(self.class_names)]
        return f"{text} ({join_names(named, 20)})"

    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """Returns the labels `(b,)`, or "no class" for None, as prefix `(b 1)`."""
        if condition is None:
            return Prompt(torch.full((batch_size, 1), self.num_classes, device=device))
        return Prompt(condition.to(device=device, dtype=torch.int64)[:, None])

    def labels(self, classes: Sequence[str | int]) -> Tensor:
        """Returns the labels of classes, `(n,)` int64; a number is a label already.

        Raises:
            UserError: if there is no such class.
        """
        names = list(self.class_names or ())
        labels = [names.index(c) if isinstance(c, str) and c in names else c for c in classes]
        for label in labels:
            if not isinstance(label, int) or not 0 <= label < self.num_classes:
                raise UserError(
                    f"class label {label!r} does not exist in this model: give "
                    f"{self.condition_description}."
                )
        return torch.tensor(labels, dtype=torch.int64)

    def check(self, condition: Condition, num_images: int) -> Tensor | None:
        """Returns labels `(b,)` also for class names, or for one name for all images."""
        if isinstance(condition, str):
            condition = [condition] * num_images
        if isinstance(condition, list | tuple):
            condition = self.labels(condition)
        return super().check(condition, num_images)

    def fits(self, condition: Tensor, num_images: int) -> bool:
        """Whether there is an integer for each image; refuses classes that do not exist."""
        if condition.shape != (num_images,) or condition.is_floating_point():
            return False
        self.labels(condition.tolist())
        return True


class HasClasses(Protocol):
    """A model or data of classes."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None without classes."""

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names in the order of the labels, where they are known."""


def class_difference(found: HasClasses, needed: HasClasses) -> str | None:
    """Describes the first difference between two sets of classes; None if they agree.

    Names are compared where both are known: "class 1 is 'dog' and not 'owl'".
    """
    if found.num_classes != needed.num_classes:
        return f"there are {found.num_classes or 'no'} classes and not {needed.num_classes or 'no'}"
    names = zip(found.class_names or (), needed.class_names or (), strict=False)
    for label, (name, other) in enumerate(names):
        if name != other:
            return f"class {label} is {name!r} and not {other!r}"
    return None
