"""Starts a command of this project's package, or says why the package is not found."""

from importlib import import_module


def start(name: str) -> None:
    """Runs `taming.cli.NAME`."""
    try:
        console = import_module("taming.cli").console
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("taming"):
            raise
        raise SystemExit(
            "error: this Python does not find this project's package `taming`. Either it is not "
            "installed here: run `pip install .`, or use .venv/bin/python. Or an older package of "
            "the same name hides it: run `pip uninstall taming-transformers`."
        ) from None
    console(name)
