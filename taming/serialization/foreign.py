"""Reads checkpoints of other programs without running any code in them.

Such files pickle objects of the other program next to the weights: Lightning callbacks,
configurations, paths. `torch.load(weights_only=True)` builds tensors and plain containers only, and
calls nothing but the names declared with `torch.serialization.safe_globals`. This module declares
an empty stub class for each name in the file.
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import serialization

from taming.runtime.errors import MissingPathError, UserError, join_names

__all__ = ["Placeholder", "printable_name", "printable_names", "read_foreign_checkpoint"]


class Placeholder:
    """Stub for a class or function of another program, and for its instances."""

    def __new__(cls, *_: Any) -> "Placeholder":
        """Ignores all arguments."""
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _DictionaryStub(Placeholder):
    """Stub for a subclass of dict. Unpickling fills it after construction."""

    def __new__(cls, *_: Any) -> Any:
        return OrderedDict()


def read_foreign_checkpoint(path: str | Path) -> tuple[Any, list[str]]:
    """Reads a file that `torch.save` wrote.

    A file in the format from before PyTorch 1.6 may hold plain containers and tensors only.

    Returns:
        The content, in which a `Placeholder` replaces each object of the other program, and the
        sorted dotted names of the replaced classes and functions. Tensors are on the CPU.

    Raises:
        MissingPathError: if the file does not exist.
        UserError: if it is damaged or not a PyTorch checkpoint.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingPathError(
            f"{path} is not a file (looked from {Path.cwd()}). Give a checkpoint file."
        )
    # other libraries declare names whose code is safe for their own files, not for this one
    declared = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    try:
        with path.open("rb") as file:
            try:
                names = sorted(serialization.get_unsafe_globals_in_checkpoint(file))
            except ValueError:  # not a zip file: the old format
                names = []
            stubs: list[Any] = [
                (_DictionaryStub if name.lower().endswith("dict") else Placeholder, name)
                for name in names
            ]
            file.seek(0)
            with serialization.safe_globals(stubs):
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes pickle, zipfile and torch raise anything
        raise UserError(
            f"{path} cannot be read as a PyTorch checkpoint. It is damaged, incomplete, in another "
            "format, or contains code."
        ) from error
    finally:
        serialization.add_safe_globals(declared)
    return content, names


def printable_name(name: Any, max_length: int = 80) -> str:
    """Returns a name from an untrusted file, escaped and shortened for a message."""
    text = (name if isinstance(name, str) else f"<{type(name).__name__}>")[: max_length + 1]
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def printable_names(names: Sequence[Any], at_most: int = 10) -> str:
    """Joins the first names from an untrusted file for a message, see `join_names`."""
    return join_names([printable_name(name) for name in names], at_most)
