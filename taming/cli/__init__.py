"""The commands. Each one composes and checks its configuration, then calls another room."""

import sys
from types import TracebackType

__all__: list[str] = []


def _end_without_traceback(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Replaces the traceback of Ctrl-C while a command is still being imported."""
    if issubclass(kind, KeyboardInterrupt):
        print("\ninterrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _end_without_traceback
