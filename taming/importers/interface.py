"""What an importer takes and returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from taming.errors import UserError
from taming.serialization import SavedModel
from taming.serialization.foreign_names import shown, shown_names

__all__ = ["Imported", "Source", "find_weights", "is_weights"]


@dataclass
class Imported:
    """An imported model.

    Attributes:
        model: as plain data, ready to be written.
        notes: lines that say what of the file was used, and what was left out and why.
    """

    model: SavedModel
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """A kind of checkpoint of another program.

    Attributes:
        convert: `(content, config, where, **settings)` to the model: the checkpoint's content, the
            other program's arguments, and the file's name for messages. Raises a `UserError` if
            they do not fit each other.
        published: arguments of the published models, by the names their authors gave.
        settings: what else `convert` takes, by keyword, all optional.
    """

    convert: Callable[..., Imported]
    published: Mapping[str, Mapping[str, Any]]
    settings: tuple[str, ...] = ()


def is_weights(value: Any) -> bool:
    """Whether this is a dictionary of tensors by name, and not an empty one."""
    return (
        isinstance(value, dict)
        and len(value) > 0
        and all(isinstance(name, str) for name in value)
        and all(isinstance(weight, torch.Tensor) for weight in value.values())
    )


def find_weights(
    content: Any, entries: tuple[str, ...], where: str
) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """The weights in a checkpoint's content, and the names of the entries beside them.

    Args:
        content: a dictionary with the weights under one of `entries`, or the weights themselves.
        entries: names they may have, the first there is counts.
        where: the file, for messages.

    Raises:
        UserError: if there are no weights by name.
    """
    if not isinstance(content, dict):
        raise UserError(f"{where} is not a checkpoint: it holds a {type(content).__name__}.")
    entry = next((name for name in entries if isinstance(content.get(name), dict)), None)
    weights = content if entry is None else content[entry]
    if not is_weights(weights):
        raise UserError(
            f"{where} holds no weights by name under {' or '.join(map(repr, entries))}: it is not "
            f"a checkpoint of this source. Its entries: {shown_names(list(content))}."
        )
    if entry is None:
        return weights, []
    return weights, sorted((name for name in content if name != entry), key=shown)
