"""Rounds in which two programs take turns, and the numbers that come out of them."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.programs import Process, ProgramError

__all__ = ["Record", "break_even", "compare", "spread"]

Record = dict[str, Any]


def compare(
    case: dict[str, Any],
    measurement: str,
    options: dict[str, Any],
    ours: Process,
    peer: Process | None = None,
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
    records = {}
    for side in sides:
        facts = side.begin({**options, **case}, measurement)
        if facts is None:
            return None
        records[side.name] = {key: options[key] for key in ("device", "threads")} | facts
    if peer is not None:
        check_same_architecture(peer.name, *(records[side.name]["parameters"] for side in sides))
    for side in sides:
        seconds = [side.run(1)["seconds"] for _ in range(1 + options["warmup"])]
        records[side.name]["first_seconds"] = seconds[0]
    steps = max(options["steps"], math.ceil(options["turn_seconds"] / seconds[-1]))
    turns: dict[str, list[Record]] = {side.name: [] for side in sides}
    for number in range(options["rounds"]):
        for side in sides[:: -1 if number % 2 == 0 else 1]:
            turns[side.name].append(side.run(steps))
    work = work_of(case, measurement)
    for name, record in records.items():
        rounds = [turn["seconds"] / steps for turn in turns[name]]
        record["seconds"] = spread(rounds) | {"rounds": rounds}
        for unit, number in work.items():
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


def check_same_architecture(name: str, peer: dict[str, int], ours: dict[str, int]) -> None:
    """Raises a `ProgramError` if a part has other numbers of parameters on the two sides."""
    for part in ours.keys() & peer.keys():
        if ours[part] != peer[part]:
            counts = f"{peer[part]:,} parameters, and ours has {ours[part]:,}"
            raise ProgramError(name, f"its {part} is not of the same architecture: it has {counts}")


def work_of(case: dict[str, Any], measurement: str) -> dict[str, int]:
    """What one call gets done, by unit; with guidance too, only the images' tokens count."""
    if "num_tokens" not in case:
        return {"images": case["batch_size"]}
    tokens = {"tokens": case["batch_size"] * case["num_tokens"]}
    return {"steps": 1, **tokens} if measurement == "gpt_step" else tokens


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, least and greatest of one number a round."""
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def shares_of_peak(ours: Record, options: dict[str, Any], side: Process) -> dict[str, float | None]:
    """Our share of what the device can do.

    It is of the memory's bandwidth in sampling, whose facts say how many bytes it must read, and of
    the operations a second in all else.
    """
    seconds, read = ours["seconds"]["median"], ours.get("bytes_read")
    flops = of_peak = of_bandwidth = None
    if read is None and options["peak_tflops"]:
        flops = side.flops()
        of_peak = flops / seconds / (options["peak_tflops"] * 1e12)
    if read is not None and options["peak_bandwidth_gbs"]:
        of_bandwidth = read / seconds / (options["peak_bandwidth_gbs"] * 1e9)
    return {"flops": flops, "share_of_peak": of_peak, "share_of_bandwidth": of_bandwidth}


def break_even(record: Record, earlier: Sequence[Record]) -> dict[str, Any] | None:
    """After how many images and tokens compiling has saved the time it took, or `"never"`.

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
