"""Names that a foreign file gave, fit to be printed: short, few, and without control characters."""

from collections.abc import Sequence
from typing import Any

__all__ = ["shown", "shown_names"]


def shown(name: Any, at_most: int = 80) -> str:
    """A string in `at_most` characters, unprintable ones escaped; of all else only the type.

    A number or a tuple of the file may be as long as the file, or much longer once written out.
    """
    if not isinstance(name, str):
        return f"<{type(name).__name__}>"
    start = name[:at_most]
    text = start if start.isprintable() else repr(start)
    return text if len(name) <= at_most and len(text) <= at_most else text[: at_most - 1] + "…"


def shown_names(names: Sequence[Any], at_most: int = 10) -> str:
    """The first names, and how many more there are."""
    more = len(names) - at_most
    return ", ".join(map(shown, names[:at_most])) + (f" and {more} more" if more > 0 else "")
