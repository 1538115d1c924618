"""Rounds in which two programs take turns, and the numbers that come out of them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.programs import ProgramError

__all__ = ["Plan", "Side", "break_even", "compare", "spread"]

Record = dict[str, Any]


class Side(Protocol):
    """What can be timed: see `programs.Process`."""

    name: str

    def begin(self, settings: dict[str, Any], measurement: str) -> dict[str, Any] | None:
        """Builds a measurement."""

    def run(self, steps: int) -> dict[str, Any]:
        """Calls it."""

    def flops(self) -> int:
        """Operations of a call."""


@dataclass(frozen=True)
class Plan:
    """How a measurement is timed."""

    rounds: int = 5  # turns of each side
    warmup: int = 2  # uncounted calls before them, besides the very first, which is reported apart
    steps: int = 3  # least number of calls in a turn
    turn_seconds: float = 1.0  # a turn is about this long where so few calls would be shorter
    peak_tflops: float | None = None  # of the device: our share of it is reported
    peak_bandwidth_gbs: float | None = None  # of its memory


def compare(
    case: dict[str, Any],
    measurement: str,
    settings: dict[str, Any],
    plan: Plan,
    ours: Side,
    peer: Side | None = None,
) -> Record | None:
    """Times one measurement of our side, beside a peer's or alone; returns a line of the results.

    First calls and warm-up, then rounds: the other side sleeps meanwhile, and who is first changes
    from round to round, so that a machine that slows down or speeds up favours no side.

    Args:
        case: architecture and batch, the same on both sides.
        measurement: one of the stage's.
        settings: device, threads, dtype, tf32, compile, channels_last.
        plan: how.
        ours, peer: the sides.

    Returns:
        The record, or None if the peer does no such thing.

    Raises:
        ProgramError: if a side fails, or the peer has another architecture.
    """
    told = {**case, **settings}
    sides = [ours] if peer is None else [ours, peer]
    facts = []
    for side in reversed(sides):
        its_facts = side.begin(told, measurement)
        if its_facts is None:
            return None
        facts.insert(0, its_facts)
    if peer is not None:
        check_same_architecture(peer.name, *facts)
    first: list[float] = []
    for side in reversed(sides):
        calls = [side.run(1)["seconds"] for _ in range(1 + plan.warmup)]
        first.insert(0, calls[0])
        warm_seconds = calls[-1] if side is ours else 0.0
    steps = max(plan.steps, math.ceil(plan.turn_seconds / warm_seconds))
    turns: list[list[dict[str, Any]]] = [[] for _ in sides]
    for number in range(plan.rounds):
        for side, its_turns in list(zip(sides, turns, strict=True))[
            :: 1 if number % 2 == 0 else -1
        ]:
            its_turns.append(side.run(steps))
    timings = [
        timing(*side, steps, work(case, measurement))
        for side in zip(facts, first, turns, strict=True)
    ]
    record: Record = {
        "case": case,
        "measurement": measurement,
        "steps_per_round": steps,
        "ours": timings[0],
        "peer_name": None if peer is None else peer.name,
        "peer": None if peer is None else timings[1],
        "ratio": None,
        **shares_of_peak(facts[0], timings[0]["seconds"]["median"], plan, ours),
    }
    if peer is not None:
        rounds = zip(*(t["seconds"]["rounds"] for t in reversed(timings)), strict=True)
        record["ratio"] = spread([theirs / here for theirs, here in rounds])
    return record


def check_same_architecture(name: str, ours: dict[str, Any], peers: dict[str, Any]) -> None:
    """Raises a `ProgramError` if a part has other numbers of parameters on the two sides."""
    here, there = ours["parameters"], peers["parameters"]
    for part in here.keys() & there.keys():
        if here[part] != there[part]:
            raise ProgramError(
                name,
                f"its {part} is not of the same architecture: it has {there[part]:,} parameters, "
                f"and ours has {here[part]:,}",
            )


def work(case: dict[str, Any], measurement: str) -> dict[str, int]:
    """What one call gets done, by unit; with guidance too, only the images' tokens count."""
    if "num_tokens" not in case:
        return {"images": case["batch_size"]}
    tokens = {"tokens": case["batch_size"] * case["num_tokens"]}
    return {"steps": 1, **tokens} if measurement == "gpt_step" else tokens


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest of one number a round."""
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def timing(
    facts: dict[str, Any],
    first_seconds: float,
    turns: Sequence[dict[str, Any]],
    steps: int,
    done: dict[str, int],
) -> dict[str, Any]:
    """One side's part of a record."""
    rounds = [turn["seconds"] / steps for turn in turns]
    seconds = spread(rounds)
    peaks = [turn["peak_memory_gib"] for turn in turns if turn["peak_memory_gib"] is not None]
    return {
        **facts,
        "seconds": {**seconds, "rounds": rounds},
        "first_seconds": first_seconds,
        **{f"{unit}_per_second": number / seconds["median"] for unit, number in done.items()},
        "peak_memory_gib": max(peaks, default=None),
    }


def shares_of_peak(
    facts: dict[str, Any], seconds: float, plan: Plan, ours: Side
) -> dict[str, float | None]:
    """Our share of what the device can do.

    Of the memory's bandwidth in sampling, whose facts name the bytes that it must read; of the
    operations a second in all else.
    """
    read = facts.get("bytes_read")
    flops = ours.flops() if plan.peak_tflops is not None and read is None else None
    of_peak = of_bandwidth = None
    if plan.peak_tflops is not None and flops is not None:
        of_peak = flops / seconds / (plan.peak_tflops * 1e12)
    if plan.peak_bandwidth_gbs is not None and read is not None:
        of_bandwidth = read / seconds / (plan.peak_bandwidth_gbs * 1e9)
    return {"flops": flops, "share_of_peak": of_peak, "share_of_bandwidth": of_bandwidth}


def break_even(record: Record, earlier: Sequence[Record]) -> dict[str, int | str] | None:
    """After how many images and tokens compiling has saved the time it took, or `"never"`.

    Args:
        record: a comparison; None is returned where it is not compiled.
        earlier: where our uncompiled side of the same case, beside the same peer, is looked for.
    """
    eager_name = record["measurement"].removesuffix("_compiled")
    alike = (record["case"], eager_name, record["peer_name"])
    found = (r["ours"] for r in earlier if (r["case"], r["measurement"], r["peer_name"]) == alike)
    eager, ours = next(found, None), record["ours"]
    if eager is None or eager_name == record["measurement"]:
        return None
    spent = ours["first_seconds"] - eager["first_seconds"]
    saved = eager["seconds"]["median"] - ours["seconds"]["median"]  # by each call but the first
    units = {"images": record["case"]["batch_size"], **work(record["case"], eager_name)}
    if spent <= 0:
        return units
    if saved <= 0:
        return dict.fromkeys(units, "never")
    calls = 1 + math.ceil(spent / saved)
    return {unit: calls * number for unit, number in units.items()}
