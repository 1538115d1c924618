"""Two programs, each a process, take turns; and the numbers that come out of it."""

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

__all__ = ["ROOT", "Program", "ProgramError", "Record", "break_even", "compare", "spread"]

ROOT = Path(__file__).resolve().parents[1]
Record = dict[str, Any]


class ProgramError(Exception):
    """A program cannot be timed. The message says which, and why."""


class Program:
    """A program in a process of its own, asleep between its turns; used in a `with` statement.

    Args:
        name: of the program, in the results.
        build: the file that builds its measurements (see `peers/serve.py`).
        python: the Python it runs with.
        checkout: where to import this program from; None for another program.
        precision: its `dtype` and `tf32`, where they are not the run's.
    """

    def __init__(
        self,
        name: str,
        build: Path,
        python: str | Path = sys.executable,
        checkout: Path | None = None,
        precision: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.precision = precision or {}
        self._command = [python, "-s", ROOT / "benchmarks" / "peers" / "serve.py", build]
        # another program must not find our package, whose name CompVis' has too
        self._environment = {**os.environ, "PYTHONPATH": str(checkout or "")}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=self._environment,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._process.communicate()

    def kill(self) -> None:
        """Ends the process; what it is asked then fails."""
        self._process.kill()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Returns what a method of `Session` in `peers/serve.py` returns.

        Raises:
            ProgramError: if it fails, or the process has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # there is no answer then either
            print(json.dumps([method, *arguments]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise ProgramError(f"{self.name} cannot be timed: {answer['error']}")
        return answer["result"]


def compare(
    case: dict[str, Any],
    measurement: str,
    options: dict[str, Any],
    ours: Program,
    peer: Program | None = None,
) -> Record | None:
    """Times a measurement of our side, alone or beside a peer: first calls, warm-up, rounds.

    The other side sleeps meanwhile, and who is first changes from round to round, so that a machine
    that slows down or speeds up favours no side.

    Args:
        case: architecture and batch, the same on both sides.
        measurement: one of the stage's.
        options: of the command line.
        ours: this program.
        peer: another one, or another version of this one.

    Returns:
        A line of the results; None if the peer does no such thing.

    Raises:
        ProgramError: if a side fails, or the peer has another architecture.
    """
    sides = [ours] if peer is None else [peer, ours]
    records: dict[str, Record] = {}
    for side in sides:
        settings = {**options, **case, **side.precision}
        facts = side.ask("begin", settings, measurement)
        if facts is None:
            return None
        run = {key: settings[key] for key in ("device", "threads", "dtype", "tf32")}
        records[side.name] = run | facts
    if peer is not None:
        own, other = (records[side.name]["parameters"] for side in (ours, peer))
        for part in own.keys() & other.keys():
            if own[part] != other[part]:
                raise ProgramError(
                    f"{peer.name} is not of the same architecture: its {part} has {other[part]:,} "
                    f"parameters, and ours has {own[part]:,}"
                )
    for side in sides:
        seconds = [side.ask("run", 1)["seconds"] for _ in range(1 + options["warmup"])]
        records[side.name] |= {"first_seconds": seconds[0], "second_seconds": [*seconds, None][1]}
    steps = max(1, math.ceil(options["turn_seconds"] / seconds[-1]))
    turns: dict[str, list[Record]] = {side.name: [] for side in sides}
    for number in range(case.get("rounds", options["rounds"])):
        for side in sides[:: -1 if number % 2 == 0 else 1]:
            turns[side.name].append(side.ask("run", steps))
    for name, record in records.items():
        rounds = [turn["seconds"] / steps for turn in turns[name]]
        record["seconds"] = spread(rounds) | {"rounds": rounds}
        for unit, number in work_of(case, measurement).items():
            record[f"{unit}_per_second"] = number / statistics.median(rounds)
        peaks = [turn["peak_memory_gib"] or 0.0 for turn in turns[name]]
        record["peak_memory_gib"] = max(peaks) or None
    record = {"case": case, "measurement": measurement, "steps_per_round": steps}
    record |= {"ours": records[ours.name], "peer_name": None, "peer": None, "ratio": None}
    if peer is not None:
        pairs = zip(*(records[side.name]["seconds"]["rounds"] for side in sides), strict=True)
        ratio = spread([theirs / here for theirs, here in pairs])
        record |= {"peer_name": peer.name, "peer": records[peer.name], "ratio": ratio}
    return record | shares_of_peak(records[ours.name], options, ours)


def work_of(case: dict[str, Any], measurement: str) -> dict[str, int]:
    """Returns what one call gets done, by unit; with guidance, only the images' tokens count."""
    if "num_tokens" not in case:
        return {"images": case["batch_size"]}
    tokens = {"tokens": case["batch_size"] * case["num_tokens"]}
    return {"steps": 1, **tokens} if measurement == "gpt_step" else tokens


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns median, least and greatest of one number a round."""
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def shares_of_peak(ours: Record, options: dict[str, Any], side: Program) -> dict[str, float | None]:
    """Returns our share of what the device can do.

    In sampling, whose facts say how many bytes it must read, it is the share of the memory's
    bandwidth, and in all else that of the operations a second.
    """
    seconds, read = ours["seconds"]["median"], ours.get("bytes_read")
    flops = of_peak = of_bandwidth = None
    if read is None and options["peak_tflops"]:
        flops = side.ask("flops")
        of_peak = flops / seconds / (options["peak_tflops"] * 1e12)
    if read is not None and options["peak_bandwidth_gbs"]:
        of_bandwidth = read / seconds / (options["peak_bandwidth_gbs"] * 1e9)
    return {"flops": flops, "share_of_peak": of_peak, "share_of_bandwidth": of_bandwidth}


def break_even(record: Record, earlier: Sequence[Record]) -> dict[str, Any] | None:
    """Returns after how many images and tokens compiling has saved its time, or `"never"`.

    Args:
        record: a comparison; None is returned where it is not compiled.
        earlier: where our uncompiled side of the same case, beside the same peer, is looked for.
    """
    measurement = record["measurement"].removesuffix("_compiled")
    alike = (record["case"], measurement, record["peer_name"])
    found = (r["ours"] for r in earlier if (r["case"], r["measurement"], r["peer_name"]) == alike)
    eager, ours = next(found, None), record["ours"]
    if eager is None or measurement == record["measurement"]:
        return None
    spent = ours["first_seconds"] - eager["first_seconds"]
    saved = eager["seconds"]["median"] - ours["seconds"]["median"]  # by each call but the first
    units = {"images": record["case"]["batch_size"], **work_of(record["case"], measurement)}
    if spent > 0 and saved <= 0:
        return dict.fromkeys(units, "never")
    calls = 1 + (math.ceil(spent / saved) if spent > 0 else 0)
    return {unit: calls * number for unit, number in units.items()}
