"""Which version of this program, and of what it builds on, made a result."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import taming

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Returns versions by name; this program's own has its commit if it runs from a checkout."""
    found = {"taming": taming.__version__, "python": platform.python_version()}
    checkout = Path(taming.__file__).resolve().parents[1]
    if (checkout / ".git").exists():
        git = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
        try:
            done = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10)
            found["taming"] += f"+{done.stdout.strip()}"
        except (OSError, subprocess.SubprocessError):
            pass  # no git, or a checkout of another user
    return found | {name: version(name) for name in ("torch", "torchvision", "lightning")}
