"""Exceptions a user can cause and mend; the commands print them as one line, no traceback."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MissingPathError", "UserError", "join_names", "writing"]


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


def join_names(names: Sequence[str], at_most: int = 10, separator: str = ", ") -> str:
    """Joins the first names for a message, and says how many more there are."""
    more = [f"and {len(names) - at_most} more"] if len(names) > at_most else []
    return separator.join([*names[:at_most], *more])
