"""What an importer takes and returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from taming.errors import UserError
from taming.serialization import SavedModel

__all__ = ["Imported", "Source", "find_weights"]


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
        convert: `(content, config, where)` to the model: the checkpoint's content, the other
            program's arguments, and the file's name for messages. Raises a `UserError` if they do
            not fit each other.
        published: arguments of the published models, by the names their authors gave.
    """

    convert: Callable[[Any, Mapping[str, Any], str], Imported]
    published: Mapping[str, Mapping[str, Any]]


def find_weights(
    content: Any, entries: tuple[str, ...], where: str
) -> tuple[dict[str, torch.Tensor], list[str]]:
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
    if not weights or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in weights.items()
    ):
        raise UserError(
            f"{where} holds no weights by name under {' or '.join(map(repr, entries))}: it is not "
            f"a checkpoint of this source. Its entries: {', '.join(map(str, list(content)[:10]))}."
        )
    return weights, [] if entry is None else sorted(str(name) for name in content if name != entry)
