"""The commands: each reads its configuration, checks it, and calls a workflow or the trainer."""

import sys
from pathlib import Path

__all__ = ["console"]


def console(name: str | None = None) -> None:
    """Runs a command; if not named, the one this process was started as: `taming-train-vqgan`."""
    try:
        from taming.cli.start import start  # slow; in here, so that Ctrl-C gives no traceback

        start(name or Path(sys.argv[0]).stem.removeprefix("taming-").replace("-", "_"))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
