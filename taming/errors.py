"""Exceptions a user can cause and mend; the commands print them as one line, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MissingPathError", "UserError", "writing"]


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
