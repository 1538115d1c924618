"""Exceptions a user can cause and mend; the commands print them as one line, no traceback."""

__all__ = ["MissingPathError", "UserError"]


class UserError(ValueError):
    """Something the user can put right. The message says what is wrong, where, and what to do."""


class MissingPathError(UserError, FileNotFoundError):
    """A path the user gave does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
