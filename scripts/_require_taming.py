"""Importing this module checks that Python finds the package `taming` of this project."""

from importlib.util import find_spec

try:
    installed = find_spec("taming.cli") is not None
except ModuleNotFoundError:
    installed = False
if not installed:
    raise SystemExit(
        "error: this Python does not find this project's package `taming`. If it is not installed, "
        "run `pip install .` or use .venv/bin/python. If an older package of the same name hides "
        "it, run `pip uninstall taming-transformers`."
    )
