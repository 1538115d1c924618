"""Starts a command: what can be checked first is, before seconds of imports."""

import sys
from importlib import import_module
from pathlib import Path

from taming.cli.mistakes import check_command_line
from taming.errors import UserError

__all__ = ["console", "start"]


def start(name: str) -> None:
    """Runs `taming.cli.NAME` with the process's arguments."""
    arguments = sys.argv[1:]
    if {"-m", "--multirun"} & set(arguments):
        print(
            "error: --multirun does one run only here: give the command once for each run, with "
            "a run_dir of its own.",
            file=sys.stderr,
        )
        sys.exit(2)
    if not any(argument.startswith(("-", "hydra.")) for argument in arguments):  # --help, say
        try:
            check_command_line(name, arguments)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
    import_module(f"taming.cli.{name}").main()


def console() -> None:
    """Runs the command whose installed name this process was started by: `taming-train-vqgan`."""
    start(Path(sys.argv[0]).stem.removeprefix("taming-").replace("-", "_"))
