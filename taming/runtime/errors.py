"""Exceptions that a user can fix, and how messages and files are written.

The commands print such an exception as one line, no traceback.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from unicodedata import category

__all__ = ["MissingPathError", "UserError", "join_names", "printable", "replacing", "writing"]


class UserError(ValueError):
    """An error that the user can fix. The message says what is wrong, where, and what to do."""


class MissingPathError(UserError, FileNotFoundError):
    """A path the user gave does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises a `UserError` where writing to `path` fails: no permission, no space."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}.") from error


@contextmanager
def replacing(path: Path, mode: str = "w", **settings: Any) -> Iterator[IO[Any]]:
    """Opens a file that takes the place of `path` once it is whole.

    A full disk or a kill costs the new file, never the old one. `settings` are those of `open`.
    """
    unfinished = path.with_suffix(".unfinished")
    try:
        with unfinished.open(mode, **settings) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def join_names(names: Sequence[str], at_most: int = 10, separator: str = ", ") -> str:
    """Joins the first names for a message, and says how many more there are."""
    more = [f"and {len(names) - at_most} more"] if len(names) > at_most else []
    return separator.join([*names[:at_most], *more])


def printable(text: str) -> str:
    """Escapes what would steer a terminal, or cannot be written: names may hold anything."""
    return "".join(
        c if c.isprintable() or c in "\n\t" or category(c) == "Zs" else repr(c)[1:-1] for c in text
    )
