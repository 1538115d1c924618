"""Times one measurement of two programs, each in its own process."""

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
    """A program in its own process, which starts with the first request.

    An error ends the process. The next request starts a new one.

    Args:
        name: the program's name in the results.
        build: the file that builds its measurements (see `peers/serve.py`).
        python: the interpreter that runs it.
        checkout: the checkout to import this program from; None for another program.
        dtype: its precision; None for the precision of the run.
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
        # CompVis' package is also called taming, so a peer must not find ours
        self._environment = {**os.environ, "PYTHONPATH": str(checkout or "")}
        self._process: subprocess.Popen[str] | None = None

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of `Session` in `peers/serve.py` and returns its result.

        Raises:
            ProgramError: The method failed, or the process ended.
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
        with suppress(BrokenPipeError):  # the read below then returns no line
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
    """Times a measurement of our program, alone or with a peer: first calls, then rounds.

    Args:
        settings: the measurement, its case and options, the same for both programs.
        ours: This program.
        peer: another program, or another version of this program.

    Returns:
        A line of the results: `settings`, `ours`, `peer` and, for each round, the `ratio` of the
        peer's seconds to ours. None if the peer does not have this measurement.

    Raises:
        ProgramError: a program failed, or the architectures differ.
    """
    sides = {"ours": ours} if peer is None else {"peer": peer, "ours": ours}
    record: Record = {"settings": settings, "peer": None, "ratio": None}
    for key, side in sides.items():
        dtype = side.dtype or settings["dtype"]
        facts = side.ask("start", settings | {"dtype": dtype})
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
    for key, timings in take_turns(turns, settings["rounds"]).items():
        seconds = [timing["seconds"] / steps for timing in timings]
        # images or tokens; the two sequences of guidance count once
        count = settings["batch_size"] * settings.get("num_tokens", 1)
        record[key] |= {
            "seconds": seconds,
            "per_second": count / median(seconds),
            "peak_memory_gib": max(timing["peak_memory_gib"] for timing in timings),
        }
    if peer is not None:
        record["ratio"] = ratios(record["peer"]["seconds"], record["ours"]["seconds"])
    return record


def check_architecture(ours: Record, peer: Record) -> None:
    """Raises ProgramError if a part of both programs differs in its number of parameters."""
    for part in ours["parameters"].keys() & peer["parameters"].keys():
        our_count, peer_count = (side["parameters"][part] for side in (ours, peer))
        if our_count != peer_count:
            raise ProgramError(
                f"{peer['name']} has another architecture: its {part} has {peer_count:,} "
                f"parameters, and ours has {our_count:,}"
            )
