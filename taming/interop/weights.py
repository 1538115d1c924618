"""Foreign weights, every one of which must be used or dropped with a reason."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from taming.runtime.errors import UserError
from taming.serialization import PretrainedModel, SavedModel
from taming.serialization.foreign import printable_name, printable_names

__all__ = ["ForeignWeights", "Imported", "Names", "is_weights", "note_ignored"]

Names = Mapping[str, str | Sequence[str]]  # another program's by ours; several are stacked


@dataclass
class Imported:
    """An imported model, and lines that say what of the file was used and what not, and why."""

    model: SavedModel
    notes: list[str] = field(default_factory=list)


def is_weights(value: Any) -> bool:
    """Returns whether this is a dictionary of tensors by name, and not an empty one."""
    return (
        isinstance(value, dict)
        and len(value) > 0
        and all(isinstance(name, str) for name in value)
        and all(isinstance(weight, torch.Tensor) for weight in value.values())
    )


def note_ignored(config: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Returns a line that names arguments that no importer reads, such as mistyped ones."""
    ignored = sorted((name for name in config if name not in known), key=printable_name)
    return [f"not arguments of the model, ignored: {printable_names(ignored)}"] if ignored else []


class ForeignWeights:
    """State dictionary that is emptied key by key; `finish` reports all that does not fit.

    Args:
        weights: by the other program's names; not changed.

    Attributes:
        notes: lines that say what was dropped.
        beside: names of the file's other entries.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.notes: list[str] = []
        self.beside: list[Any] = []
        self._left = {name: weight.detach() for name, weight in weights.items()}
        self._used = 0
        self._missing: list[str] = []
        self._misshapen: list[str] = []

    @classmethod
    def find(cls, content: Any, *entries: str) -> Self:
        """Takes the weights under the first of `entries` there is, or else all of the content.

        Raises:
            UserError: if there are no weights by name.
        """
        found = content if isinstance(content, dict) else {}
        entry = next((name for name in entries if isinstance(found.get(name), dict)), None)
        weights = found if entry is None else found[entry]
        if not is_weights(weights):
            raise UserError(
                f"it holds no weights by name under {' or '.join(map(repr, entries))}: it is not a "
                f"checkpoint of this source. Its entries: {printable_names(list(found))}."
            )
        self = cls(weights)
        self.beside = [] if entry is None else [name for name in content if name != entry]
        return self

    def names(self, prefix: str) -> list[str]:
        """Returns the names with this prefix that are not yet used or dropped."""
        return [name for name in self._left if name.startswith(prefix)]

    def peek(self, name: str) -> torch.Tensor | None:
        """Returns a weight without using it, or None."""
        return self._left.get(name)

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Uses a weight; sizes of 1 do not count: a 1×1 convolution fits a linear layer.

        One that is missing or of another shape is noted for `finish`, and zeros stand for it.
        """
        shape, weight = tuple(shape), self._left.pop(name, None)
        if weight is None:
            self._missing.append(name)
        elif [size for size in weight.shape if size != 1] != [size for size in shape if size != 1]:
            self._misshapen.append(f"{name} is {tuple(weight.shape)} and not {shape}")
        else:
            self._used += 1
            return weight.reshape(shape)
        return torch.zeros(()).expand(shape)  # without memory, for a shape the file may state

    def hand_over(self, prefix: str) -> dict[str, torch.Tensor]:
        """Removes the weights with this prefix, and returns them without it."""
        return {name.removeprefix(prefix): self._left.pop(name) for name in self.names(prefix)}

    def fill(
        self,
        model: PretrainedModel,
        names: Names,
        made: Mapping[str, torch.Tensor] | None = None,
    ) -> SavedModel:
        """Returns the model with these weights, in its own dtypes.

        Args:
            model: gives config, names, shapes and dtypes, and the values of buffers the other
                program does not have.
            names: the other program's by the model's; several are stacked, row under row.
            made: weights computed from foreign ones, by the model's names.
        """
        saved, parameters = model.to_saved(), dict(model.named_parameters())
        for name, value in saved.state.items():
            if made and name in made:
                weight = made[name]
            elif name in names:
                weight = self._take_stacked(names[name], value.shape)
            else:
                assert name not in parameters, f"{name} has no foreign name"
                continue
            assert weight.shape == value.shape, name
            saved.state[name] = weight.to(value.dtype)
        return saved

    def _take_stacked(self, names: str | Sequence[str], shape: Sequence[int]) -> torch.Tensor:
        """Uses one weight, or several with equally many rows each."""
        if isinstance(names, str):
            return self.take(names, shape)
        num_rows, *width = shape
        parts = [self.take(name, (num_rows // len(names), *width)) for name in names]
        if self._missing or self._misshapen:  # `finish` will say so; no memory for zeros
            return torch.zeros(()).expand(tuple(shape))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def drop(self, prefix: str, reason: str, *, ending: str = "") -> None:
        """Drops the weights with this prefix and ending, if there are any."""
        names = [name for name in self.names(prefix) if name.endswith(ending)]
        for name in names:
            del self._left[name]
        if names:
            what = (
                printable_name(names[0]) if len(names) == 1 else f"{prefix}*{ending} ({len(names)})"
            )
            self.notes.append(f"dropped {what}: {reason}")

    def finish(self) -> list[str]:
        """Returns lines that say what was used and dropped, if every weight fits and none is left.

        Raises:
            UserError: naming what is missing, of another shape, or left.
        """
        problems = [
            f"{what} {printable_names(names, 4)}"
            for what, names in (
                ("missing in the file:", self._missing),
                ("of another shape:", self._misshapen),
                ("unexpected in the file:", sorted(self._left)),
            )
            if names
        ]
        if problems:
            raise UserError(
                f"the weights do not fit the config: {'; '.join(problems)}. Give the config the "
                "checkpoint was trained with."
            )
        notes = [f"used {self._used} weights", *self.notes]
        if self.beside:
            notes.append(f"left out beside the weights: {printable_names(self.beside)}")
        return notes
