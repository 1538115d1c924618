"""Class labels as conditions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taming.conditioning.base import Conditioning, Prompt
from taming.errors import UserError

__all__ = ["ClassLabel"]

NAMES_SHOWN = 20


class ClassLabel(Conditioning):
    """The prefix is the class label; one more id, the last, stands for "no class".

    Args:
        num_classes: labels are 0 to num_classes - 1.
        dropout: share of the labels that training replaces by "no class". Only with some is the
            "no class" id ever trained, and only then can images be asked for without a class.
        class_names: name of each class, for messages and reports.
    """

    num_classes: int
    kind = "class_label"
    prefix_length = 1

    def __init__(
        self, num_classes: int, dropout: float = 0.0, class_names: Sequence[str] | None = None
    ) -> None:
        if num_classes < 1:
            raise UserError(f"num_classes is {num_classes}: a class model needs at least 1 class.")
        if not 0.0 <= dropout < 1.0:
            raise UserError(
                f"condition_dropout is {dropout}: it must be at least 0 and less than 1."
            )
        if class_names is not None and len(class_names) != num_classes:
            raise UserError(f"there are {len(class_names)} class names for {num_classes} classes.")
        self.num_classes = num_classes
        self.dropout = dropout
        self.class_names = None if class_names is None else tuple(class_names)
        self.num_prefix_ids = num_classes + 1

    @property
    def no_class_id(self) -> int:
        """The prefix id of "no class"."""
        return self.num_classes

    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """The labels as prefix `(b 1)`.

        Args:
            condition: `(b,)` integer labels, or None for "no class".
            batch_size: b.
            device: where the prefix is to be.

        Raises:
            UserError: if a label on the CPU is out of range (see `check_values`), or None is not
                something the model has learned.
        """
        if condition is None:
            if not self.can_do_without:
                raise UserError(
                    "this model was trained on classes without condition_dropout and has not "
                    f"learned to do without: give a class label for each image, {self._range()}."
                )
            return Prompt(torch.full((batch_size, 1), self.no_class_id, device=device))
        if condition.shape != (batch_size,) or condition.is_floating_point():
            raise UserError(
                f"the condition is a {condition.dtype} tensor of shape {tuple(condition.shape)}, "
                f"where {batch_size} integer class labels, shape ({batch_size},), are needed."
            )
        if condition.device.type == "cpu":
            self.check_values(condition)
        return Prompt(condition.to(device=device, dtype=torch.int64)[:, None])

    def check_values(self, condition: Tensor) -> None:
        """Refuses labels of classes that there are not."""
        for label in condition.flatten().tolist():
            if not 0 <= label < self.num_classes:
                raise UserError(
                    f"class label {label} does not exist in this model: labels are {self._range()}."
                )

    def drop(self, prompt: Prompt, generator: torch.Generator | None = None) -> Prompt:
        """Replaces each label by "no class" with probability `dropout`."""
        if self.dropout == 0.0:
            return prompt
        return Prompt(self._dropped(prompt.prefix, self.no_class_id, generator))

    def config(self) -> dict[str, Any]:
        """Plain dictionary from which `conditioning_from_config` rebuilds it."""
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
