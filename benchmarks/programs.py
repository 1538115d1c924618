"""The programs that are compared, each in a process and possibly a Python of its own."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["PEERS", "ROOT", "Process", "Program", "ProgramError"]

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "benchmarks" / "peers"
PEERS_HINT = "benchmarks/README.md says how to make the peers' environment"


class ProgramError(Exception):
    """A program that cannot be timed, and the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be timed: {reason}")
        self.name = name


@dataclass(frozen=True)
class Program:
    """What builds a program's measurements, by which Python, and in which precision."""

    name: str
    build: Path  # see `peers/serve.py`
    python: Path = Path(sys.executable)
    dtype: str | None = None  # None: the run's
    tf32: bool | None = None
    checkout: Path | None = None  # of this program; None: another program


class Process:
    """A program that waits for its turns, asleep between them; used in a `with` statement.

    It starts with the first question, answers as `Session` of `peers/serve.py` does, and raises
    `ProgramError`.
    """

    def __init__(self, program: Program) -> None:
        self.program, self.name = program, program.name
        self._process: subprocess.Popen[str] | None = None
        self._messages = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=30)
            self._process.kill()
            self._process.wait()
        self._messages.close()

    def begin(self, settings: dict[str, Any], measurement: str) -> dict[str, Any] | None:
        """Builds a measurement; returns facts about it, None if the program does no such thing."""
        own = {"dtype": self.program.dtype, "tf32": self.program.tf32}
        own = {key: settings[key] if value is None else value for key, value in own.items()}
        facts = self._ask({"begin": measurement, "settings": settings | own})["facts"]
        return None if facts is None else own | facts

    def run(self, steps: int) -> dict[str, Any]:
        """Calls what was built `steps` times; returns `seconds` and `peak_memory_gib`."""
        return self._ask({"run": steps})

    def flops(self) -> int:
        """Floating-point operations of a call."""
        return self._ask({"flops": True})["flops"]

    def _start(self) -> subprocess.Popen[str]:
        program = self.program
        if not program.python.is_file():
            raise ProgramError(self.name, f"there is no Python at {program.python}; {PEERS_HINT}")
        # another program must not find our package, whose name CompVis' has too
        flags = ["-E", "-s"] if program.checkout is None else ["-s"]
        return subprocess.Popen(
            [str(program.python), *flags, str(PEERS / "serve.py"), str(program.build)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": str(program.checkout)},
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._process = self._process or self._start()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            self._messages.seek(0)
            messages = [line.strip() for line in self._messages if line.strip()]
            raise ProgramError(self.name, " ".join(["its process ended.", *messages[-1:]]))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            reason = answer["error"]
            if "ModuleNotFoundError" in reason and self.program.checkout is None:
                reason += f"; {PEERS_HINT}"
            raise ProgramError(self.name, reason)
        return answer
