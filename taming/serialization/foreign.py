"""Checkpoints of other programs, read without running or building anything in them.

Such files pickle the other program's objects (Lightning callbacks, configurations) beside the
weights. `torch.load(weights_only=True)` builds plain containers and tensors, and calls nothing but
what is declared safe: here an empty class in place of each name the file mentions.
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import serialization

from taming.runtime.errors import MissingPathError, UserError, join_names

__all__ = ["Placeholder", "read_foreign_checkpoint", "shown", "shown_names"]


class Placeholder:
    """Stand-in for any class or function that a foreign file names, and for its instances."""

    def __new__(cls, *_: Any) -> "Placeholder":
        """Ignores all arguments."""
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _Dictionary(Placeholder):
    """Stands for a subclass of dict, which the file fills after it is made."""

    def __new__(cls, *_: Any) -> Any:
        return OrderedDict()


def read_foreign_checkpoint(path: str | Path) -> tuple[Any, list[str]]:
    """Reads a file of `torch.save`.

    In the format before PyTorch 1.6, only files without objects of the other program are read.

    Returns:
        The content: plain containers, numbers, strings and tensors on the CPU, else
        `Placeholder`s; and the dotted names, sorted, of the objects for which these stand.

    Raises:
        MissingPathError: if the file does not exist.
        UserError: if it is damaged, incomplete or not such a file.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingPathError(f"{path} is no file (looked from {Path.cwd()}): give a checkpoint.")
    declared = serialization.get_safe_globals()  # by other libraries, safe to call: not here
    serialization.clear_safe_globals()
    try:
        with path.open("rb") as file:
            try:
                names = sorted(serialization.get_unsafe_globals_in_checkpoint(file))
            except ValueError:  # not of the zip format
                names = []
            stubs: list[Any] = [
                (_Dictionary if name.lower().endswith("dict") else Placeholder, name)
                for name in names
            ]
            file.seek(0)
            with serialization.safe_globals(stubs):
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes pickle, zipfile and torch raise anything
        raise UserError(
            f"{path} cannot be read as a PyTorch checkpoint: it is damaged, incomplete, of another "
            "format, or made to run a program."
        ) from error
    finally:
        serialization.add_safe_globals(declared)
    return content, names


def shown(name: Any, at_most: int = 80) -> str:
    """Returns a name from a file in a printable form, shortened and escaped."""
    text = (name if isinstance(name, str) else f"<{type(name).__name__}>")[: at_most + 1]
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= at_most else text[: at_most - 1] + "…"


def shown_names(names: Sequence[Any], at_most: int = 10) -> str:
    """Joins the first names in a printable form, see `join_names`."""
    return join_names([shown(name) for name in names], at_most)
