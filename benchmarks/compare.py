"""Times one measurement of two programs, each a process."""

import json
import math
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.table import ratios, take_turns

__all__ = ["OURS", "PEERS", "ROOT", "Program", "ProgramError", "Record", "compare"]

ROOT = Path(__file__).resolve().parents[1]
OURS = Path("benchmarks/ours.py")  # below a checkout
PEERS = ROOT / "benchmarks" / "peers"
Record = dict[str, Any]


class ProgramError(Exception):
    """A program cannot be timed. The message says which, and why."""


class Program:
    """A program in a process of its own, which starts when it is first asked.

    After an error the process is ended, and the next question starts another one.

    Args:
        name: of the program, in the results.
        build: the file that builds its measurements (see `peers/serve.py`).
        python: the Python it runs with.
        checkout: where to import this program from; None for another program.
        dtype: its precision, where it is not the run's.
    """

    def __init__(
        self,
        name: str,
        build: Path,
        python: str | Path = sys.executable,
        checkout: Path | None = None,
        dtype: str | None = None,
    ) -> None:
        self.name, self.dtype = name, dtype
        self._command = [python, "-s", PEERS / "serve.py", build]
        # another program must not find our package, whose name CompVis' has too
        self._environment = {**os.environ, "PYTHONPATH": str(checkout or "")}
        self._process: subprocess.Popen[str] | None = None

    def ask(self, method: str, *arguments: Any) -> Any:
        """Returns what a method of `Session` in `peers/serve.py` returns.

        Raises:
            ProgramError: if it fails, or the process ends.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                env=self._environment,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # there is no answer then either
            print(json.dumps([method, *arguments]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            self.close()
            raise ProgramError(f"{self.name} cannot be timed: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def compare(settings: dict[str, Any], ours: Program, peer: Program | None = None) -> Record | None:
    """Times a measurement of our side, alone or beside a peer: first calls, then rounds.

    Args:
        settings: the measurement, its case and options, the same on both sides.
        ours: this program.
        peer: another one, or another version of this one.

    Returns:
        A line of the results: `settings`, `ours`, `peer`, and its seconds over ours, the `ratio` of
        each round; None if the peer does no such thing.

    Raises:
        ProgramError: if a side fails, or the peer has another architecture.
    """
    sides = {"ours": ours} if peer is None else {"peer": peer, "ours": ours}
    record: Record = {"settings": settings, "peer": None, "ratio": None}
    for key, side in sides.items():
        dtype = side.dtype or settings["dtype"]
        facts = side.ask("begin", settings | {"dtype": dtype})
        if facts is None:
            return None
        record[key] = {"name": side.name, "dtype": dtype, **facts}
    if peer is not None:
        check_architecture(record["ours"], record["peer"])
    for key, side in sides.items():
        calls = [side.ask("run", 1)["seconds"] for _ in range(1 + settings["warmup"])]
        record[key]["first_seconds"] = calls
    steps = max(1, math.ceil(settings["turn_seconds"] / calls[-1]))
    turns = {key: partial(side.ask, "run", steps) for key, side in sides.items()}
    for key, taken in take_turns(turns, settings["rounds"]).items():
        seconds = [turn["seconds"] / steps for turn in taken]
        things = settings["batch_size"] * settings.get("num_tokens", 1)  # guided ones count once
        record[key] |= {
            "seconds": seconds,
            "per_second": things / median(seconds),
            "peak_memory_gib": max(turn["peak_memory_gib"] for turn in taken),
        }
    if peer is not None:
        record["ratio"] = ratios(record["peer"]["seconds"], record["ours"]["seconds"])
    return record


def check_architecture(ours: Record, peer: Record) -> None:
    """Raises ProgramError if parts that both have differ in their numbers of parameters."""
    for part in ours["parameters"].keys() & peer["parameters"].keys():
        here, there = (side["parameters"][part] for side in (ours, peer))
        if here != there:
            raise ProgramError(
                f"{peer['name']} is not of the same architecture: its {part} has {there:,} "
                f"parameters, and ours has {here:,}"
            )
