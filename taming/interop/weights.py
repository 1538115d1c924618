"""A foreign state dictionary. Each of its weights must be used, or dropped for a reason."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from taming.runtime.errors import UserError
from taming.serialization import PretrainedModel, SavedModel
from taming.serialization.foreign import printable_name, printable_names

__all__ = ["ForeignWeights", "Imported", "Names", "is_weights", "note_ignored"]

Names = Mapping[str, str | Sequence[str]]  # foreign names by ours; several are concatenated
MISMATCH = "the weights do not match the config: {}. Give the config of the checkpoint's training."


@dataclass
class Imported:
    """An imported model, and notes on what was used, dropped or ignored, and why."""

    model: SavedModel
    notes: list[str] = field(default_factory=list)


def is_weights(value: Any) -> bool:
    """Returns whether a value is a non-empty dictionary of tensors by name."""
    return (
        isinstance(value, dict)
        and len(value) > 0
        and all(isinstance(name, str) for name in value)
        and all(isinstance(weight, torch.Tensor) for weight in value.values())
    )


def note_ignored(config: Mapping[str, Any], arguments: Collection[str]) -> list[str]:
    """Returns a note on the entries of a config that are not `arguments`, such as typos."""
    ignored = sorted((name for name in config if name not in arguments), key=printable_name)
    return [f"ignored arguments: {printable_names(ignored)}"] if ignored else []


class ForeignWeights:
    """A state dictionary that an importer empties weight by weight.

    Args:
        weights: by the other program's names. The dictionary itself stays as it is.
        other_entries: names of the file's other entries.

    Attributes:
        notes: what was dropped, and why.
    """

    def __init__(
        self, weights: Mapping[str, torch.Tensor], other_entries: Sequence[Any] = ()
    ) -> None:
        self.notes: list[str] = []
        self.other_entries = list(other_entries)
        self._remaining = {name: weight.detach() for name, weight in weights.items()}
        self._num_used = 0

    @classmethod
    def find(cls, content: Any, *entries: str) -> Self:
        """Takes the weights from the first existing entry, or else from the whole content.

        Raises:
            UserError: if there are no weights.
        """
        content = content if isinstance(content, dict) else {}
        entry = next((name for name in entries if isinstance(content.get(name), dict)), None)
        weights = content if entry is None else content[entry]
        if not is_weights(weights):
            raise UserError(
                f"the file has no weights under {' or '.join(map(repr, entries))}, so it is not a "
                f"checkpoint of this source. Its entries: {printable_names(list(content))}."
            )
        return cls(weights, () if entry is None else [name for name in content if name != entry])

    def names(self, prefix: str) -> list[str]:
        """Returns the remaining names with this prefix."""
        return [name for name in self._remaining if name.startswith(prefix)]

    def peek(self, name: str) -> torch.Tensor | None:
        """Returns a weight without using it, or None."""
        return self._remaining.get(name)

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Uses a weight. Dimensions of size 1 are ignored: a 1×1 convolution fits a linear layer.

        Raises:
            UserError: if the weight is missing or has another shape.
        """
        weight = self._remaining.pop(name, None)
        if weight is None:
            raise UserError(MISMATCH.format(f"{name} is missing in the file"))
        if [size for size in weight.shape if size != 1] != [size for size in shape if size != 1]:
            shapes = f"{tuple(weight.shape)} instead of {tuple(shape)}"
            raise UserError(MISMATCH.format(f"the shape of {name} is {shapes}"))
        self._num_used += 1
        return weight.reshape(tuple(shape))

    def split_off(self, prefix: str) -> dict[str, torch.Tensor]:
        """Removes the weights with this prefix, and returns them without the prefix."""
        names = self.names(prefix)
        return {name.removeprefix(prefix): self._remaining.pop(name) for name in names}

    def fill(
        self,
        model: PretrainedModel,
        names: Names,
        computed: Mapping[str, torch.Tensor] | None = None,
    ) -> SavedModel:
        """Returns the model with these weights, in the dtypes of the model.

        Args:
            model: gives the config, the shapes, the dtypes, and the buffers that the other program
                lacks.
            names: foreign names by ours. Several weights are concatenated along the rows.
            computed: weights computed from foreign ones, by our names.
        """
        saved_model, parameters = model.to_saved(), dict(model.named_parameters())
        for name, value in saved_model.state.items():
            if computed and name in computed:
                weight = computed[name]
            elif name in names:
                weight = self._take_concatenated(names[name], value.shape)
            else:
                assert name not in parameters, f"{name} has no foreign name"
                continue
            assert weight.shape == value.shape, name
            saved_model.state[name] = weight.to(value.dtype)
        return saved_model

    def _take_concatenated(self, names: str | Sequence[str], shape: Sequence[int]) -> torch.Tensor:
        if isinstance(names, str) or len(names) == 1:
            return self.take(names if isinstance(names, str) else names[0], shape)
        num_rows, *width = shape
        return torch.cat([self.take(name, (num_rows // len(names), *width)) for name in names])

    def drop(self, prefix: str, reason: str, *, suffix: str = "") -> None:
        """Drops all weights with this prefix and suffix."""
        names = [name for name in self.names(prefix) if name.endswith(suffix)]
        for name in names:
            del self._remaining[name]
        if names:
            pattern = f"{prefix}*{suffix} ({len(names)})"
            dropped = printable_name(names[0]) if len(names) == 1 else pattern
            self.notes.append(f"dropped {dropped}: {reason}")

    def finish(self) -> list[str]:
        """Returns the notes.

        Raises:
            UserError: if a weight is neither used nor dropped.
        """
        if self._remaining:
            names = printable_names(sorted(self._remaining), 4)
            raise UserError(MISMATCH.format(f"unexpected in the file: {names}"))
        notes = [f"used {self._num_used} weights", *self.notes]
        if self.other_entries:
            notes.append(f"ignored entries: {printable_names(self.other_entries)}")
        return notes
