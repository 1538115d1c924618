"""Versions of this program and its libraries, for the record."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import taming

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Returns versions by name; in a checkout, the program's own includes the commit."""
    program = {"taming": taming.__version__, "python": platform.python_version()}
    checkout = Path(taming.__file__).resolve().parents[1]
    if (checkout / ".git").exists():
        git = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
        try:
            process = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10)
            program["taming"] += f"+{process.stdout.strip()}"
        except (OSError, subprocess.SubprocessError):
            pass  # git is missing, or refuses another user's checkout
    return program | {name: version(name) for name in ("torch", "torchvision", "lightning")}
