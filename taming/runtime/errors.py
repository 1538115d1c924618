"""Errors that the user can fix, their wording, and safe writing of files.

The commands print a `UserError` as one line without a traceback.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from unicodedata import category

__all__ = [
    "MissingPathError",
    "UserError",
    "escapes",
    "join_names",
    "printable",
    "replacing",
    "writing",
]


class UserError(ValueError):
    """An error that the user can fix. The message says what is wrong, where, and what to do."""


class MissingPathError(UserError, FileNotFoundError):
    """A path in the settings does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises a `UserError` if writing to `path` fails, such as on a full disk."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error


def escapes(path: Path, directory: Path) -> bool:
    """Returns whether a path leads out of a directory, when symbolic links are followed."""
    # never raises, unlike `Path.resolve`
    place, root = os.path.realpath(path), os.path.realpath(directory)
    return not Path(place).is_relative_to(root)


@contextmanager
def replacing(path: Path, mode: str = "w", **settings: Any) -> Iterator[IO[Any]]:
    """Opens a temporary file that replaces `path` at the end of the block.

    A full disk or a kill loses the new file, never the old one. A symbolic link in the place of
    either is replaced and not followed. `settings` go to `open`.
    """
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)  # of a killed process
    try:
        with unfinished.open(mode.replace("w", "x"), **settings) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def join_names(names: Sequence[str], at_most: int = 10, separator: str = ", ") -> str:
    """Joins the first names for a message, and counts the rest."""
    rest = [f"and {len(names) - at_most} more"] if len(names) > at_most else []
    return separator.join([*names[:at_most], *rest])


def printable(text: str) -> str:
    """Escapes control characters, and characters that cannot be encoded."""
    return "".join(
        c if c.isprintable() or c in "\n\t" or category(c) == "Zs" else repr(c)[1:-1] for c in text
    )
