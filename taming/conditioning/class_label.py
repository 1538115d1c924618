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
    """The prefix is the class label. One more id, the last, means "no class"."""

    kind = "class_label"

    num_classes: Annotated[int, Ge(1)]  # labels are 0 to num_classes - 1
    dropout: Dropout = 0.0  # share of the labels that training replaces by "no class"
    class_names: Sequence[str] | None = None  # in the order of the labels

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
        """Returns labels `(b,)`, or "no class" for None, as prefix `(b 1)`."""
        if condition is None:
            return Prompt(torch.full((batch_size, 1), self.num_classes, device=device))
        return Prompt(condition.to(device=device, dtype=torch.int64)[:, None])

    def labels(self, classes: Sequence[str | int]) -> Tensor:
        """Returns the labels `(n,)` int64 of class names; a number is a label already.

        Raises:
            UserError: if a class does not exist.
        """
        names = list(self.class_names or ())
        labels = [names.index(c) if isinstance(c, str) and c in names else c for c in classes]
        for label in labels:
            if not isinstance(label, int) or not 0 <= label < self.num_classes:
                raise UserError(
                    f"class label {label!r} does not exist in this model. Give "
                    f"{self.condition_description}."
                )
        return torch.tensor(labels, dtype=torch.int64)

    def check(self, condition: Condition, num_images: int) -> Tensor | None:
        """Returns labels `(b,)`, also for class names or one name for all images."""
        if isinstance(condition, str):
            condition = [condition] * num_images
        if isinstance(condition, list | tuple):
            condition = self.labels(condition)
        return super().check(condition, num_images)

    def fits(self, condition: Tensor, num_images: int) -> bool:
        """Whether there is an integer for each image; rejects classes that do not exist."""
        if condition.shape != (num_images,) or condition.is_floating_point():
            return False
        self.labels(condition.tolist())
        return True


class HasClasses(Protocol):
    """A model or dataset with or without classes."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None without classes."""

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names in the order of the labels; None if unknown."""


def class_difference(actual: HasClasses, expected: HasClasses) -> str | None:
    """Describes the first difference between two sets of classes; None if they agree.

    If both have names, it compares them: "class 1 is 'dog' and not 'owl'".
    """
    counts = actual.num_classes or "no", expected.num_classes or "no"
    if counts[0] != counts[1]:
        return f"there are {counts[0]} classes and not {counts[1]}"
    names = zip(actual.class_names or (), expected.class_names or (), strict=False)
    for label, (name, expected_name) in enumerate(names):
        if name != expected_name:
            return f"class {label} is {name!r} and not {expected_name!r}"
    return None
