"""Another program, timed in a process and a Python of its own."""

import contextlib
import json
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from taming.errors import UserError
from taming.workflows.benchmark.settings import check_dtype

__all__ = ["PeerConfig", "PeerError", "PeerProcess", "how_to_install"]

PEERS = Path(__file__).parent / "peers"


class PeerError(UserError):
    """A peer cannot be timed: it is left out, with a message."""


@dataclass(frozen=True)
class PeerConfig:
    """Which program, by which Python, and in which precision.

    Attributes:
        script: a file of `peers/` without its ending, or the path of another.
        python: the interpreter of an environment that has the program.
        dtype, tf32: the precision; None: ours.
    """

    script: str
    python: str
    dtype: str | None = None
    tf32: bool | None = None

    def __post_init__(self) -> None:
        check_dtype(self.dtype)


class PeerProcess:
    """A peer that waits for its turns, asleep between them; used as `with PeerProcess(…) as peer`.

    It answers as `Session` does, which it runs on its side.

    Args:
        name: of the peer.
        config: which program, and by which Python.

    Raises:
        PeerError: if there is no such Python.
    """

    def __init__(self, name: str, config: PeerConfig) -> None:
        self.name = name
        self.python = Path(config.python).expanduser()
        if not self.python.is_file():
            raise PeerError(f"there is no Python at {self.python}. {how_to_install(self.python)}")
        script = Path(config.script)
        if not script.suffix:
            script = PEERS / f"{config.script}.py"
        self._messages = tempfile.TemporaryFile(  # noqa: SIM115  open as long as the process
            "w+", encoding="utf-8", errors="replace"
        )
        # -E, -s: no PYTHONPATH or user directory, which could hold our package of the same name
        self._process = subprocess.Popen(
            [str(self.python), "-E", "-s", str(PEERS / "serve.py"), str(script.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._messages.close()

    def begin(self, settings: dict[str, Any], measurement: str) -> dict[str, Any] | None:
        """Has what is timed built; see `Session.begin`.

        Raises:
            PeerError: if that fails.
        """
        return self._ask({"begin": measurement, "settings": settings})["facts"]

    def run(self, steps: int) -> dict[str, Any]:
        """Has it called and timed; see `Session.run`.

        Raises:
            PeerError: if that fails.
        """
        return self._ask({"run": steps})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            raise PeerError(f"its process ended. {self._last_message()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            hint = ""
            if "ModuleNotFoundError" in answer["error"]:
                hint = f" {how_to_install(self.python)}"
            raise PeerError(f"{answer['error']}.{hint}")
        return answer

    def _last_message(self) -> str:
        self._messages.seek(0)
        lines = [line.strip() for line in self._messages if line.strip()]
        return lines[-1] if lines else ""


def how_to_install(python: Path) -> str:
    """The commands that make the peers' environment, with our versions of PyTorch."""
    torch, torchvision = (version(package).split("+")[0] for package in ("torch", "torchvision"))
    environment = python.parent.parent
    packages = "pytorch-lightning omegaconf einops requests tqdm diffusers transformers"
    return (
        "The peers need an environment of their own, as CompVis' package is called `taming` too:\n"
        f"  python3 -m venv {environment}\n"
        f"  {python} -m pip install torch=={torch} torchvision=={torchvision} {packages}\n"
        f"  {python} -m pip install --no-deps taming-transformers-rom1504\n"
        "or, if there is one already, give its interpreter as peer_python=PATH, or "
        "peers.NAME.python=PATH for a single peer."
    )
