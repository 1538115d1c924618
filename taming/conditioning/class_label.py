"""Class labels as conditions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taming.conditioning.base import Conditioning, Prompt, check_dropout
from taming.errors import UserError

__all__ = ["ClassLabel"]

NAMES_SHOWN = 20


class ClassLabel(Conditioning):
    """The prefix is the class label; one more id, the last, stands for "no class".

    Args:
        num_classes: labels are 0 to num_classes - 1.
        dropout: share of the labels that training replaces by "no class". Only with some is the
            "no class" id ever trained, so that the model can draw images without a class.
        class_names: name of each class, to ask for classes by name, and for reports.
    """

    num_classes: int
    kind = "class_label"
    prefix_length = 1

    def __init__(
        self, num_classes: int, dropout: float = 0.0, class_names: Sequence[str] | None = None
    ) -> None:
        if num_classes < 1:
            raise UserError(f"num_classes is {num_classes}: a class model needs at least 1 class.")
        self.num_classes = num_classes
        self.dropout = check_dropout(dropout)
        self.class_names = None if class_names is None else tuple(class_names)
        self.num_prefix_ids = num_classes + 1

    @property
    def no_class_id(self) -> int:
        """The prefix id of "no class"."""
        return self.num_classes

    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """Returns the labels `(b,)`, or "no class" for None, as prefix `(b 1)`."""
        if condition is None:
            return Prompt(torch.full((batch_size, 1), self.no_class_id, device=device))
        return Prompt(condition.to(device=device, dtype=torch.int64)[:, None])

    def labels(self, classes: Sequence[str | int]) -> Tensor:
        """Returns the labels of classes, `(n,)` int64; a number is a label already.

        Raises:
            UserError: if there is no such class.
        """
        names = self.class_names or ()
        labels = [names.index(c) if isinstance(c, str) and c in names else c for c in classes]
        for label in labels:
            if not isinstance(label, int) or not 0 <= label < self.num_classes:
                known = self._range()
                raise UserError(
                    f"class label {label!r} does not exist in this model: labels are {known}."
                )
        return torch.tensor(labels, dtype=torch.int64)

    def check_values(self, condition: Tensor) -> None:
        """Refuses labels of classes that do not exist."""
        self.labels(condition.flatten().tolist())

    def check(self, condition: Tensor | None, num_images: int) -> None:
        """Refuses labels that are not one for each image, or None where that was not learned."""
        if condition is None:
            if not self.can_do_without:
                raise UserError(
                    "this model was trained on classes without condition_dropout and has not "
                    f"learned to do without: give a class label for each image, {self._range()}."
                )
        elif condition.shape != (num_images,) or condition.is_floating_point():
            raise UserError(
                f"the condition is a {condition.dtype} tensor of shape {tuple(condition.shape)}, "
                f"where {num_images} integer class labels, shape ({num_images},), are needed."
            )
        else:
            self.check_values(condition)

    def drop(self, prompt: Prompt, generator: torch.Generator | None = None) -> Prompt:
        """Replaces each label by "no class" with probability `dropout`."""
        if self.dropout == 0.0:
            return prompt
        return Prompt(self._dropped(prompt.prefix, self.no_class_id, generator))

    def config(self) -> dict[str, Any]:
        """Returns the plain dictionary from which `conditioning_from_config` rebuilds it."""
        return {
            "kind": self.kind,
            "num_classes": self.num_classes,
            "dropout": self.dropout,
            "class_names": None if self.class_names is None else list(self.class_names),
        }

    def _range(self) -> str:
        text = f"0 to {self.num_classes - 1}"
        if self.class_names is None:
            return text
        named = [f"{label} {name}" for label, name in enumerate(self.class_names[:NAMES_SHOWN])]
        more = ", …" if self.num_classes > NAMES_SHOWN else ""
        return f"{text} ({', '.join(named)}{more})"
