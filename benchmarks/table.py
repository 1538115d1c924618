"""Programs take turns, and their results become a table."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

import numpy as np

__all__ = ["aligned", "cells", "number", "ratios", "spread", "table", "take_turns"]

T = TypeVar("T")


def take_turns(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Calls each side once per round and returns the results of each side.

    The order changes from round to round, so that a machine that slows down or speeds up favours no
    side.
    """
    results: dict[str, list[T]] = {name: [] for name in sides}
    for index in range(rounds):
        for name in list(sides)[:: -1 if index % 2 else 1]:
            results[name].append(sides[name]())
    return results


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Returns the quotients of two sides round by round."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def number(value: float) -> str:
    """Returns a number with four significant digits."""
    return np.format_float_positional(value, 4, unique=False, fractional=False, trim="-")


def spread(values: Sequence[float]) -> str:
    """Returns `median (minimum–maximum)`."""
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


def aligned(rows: Sequence[Mapping[str, str]]) -> str:
    """Formats rows of cells as a table with headings, without the columns that are always empty."""
    names = dict.fromkeys(name for row in rows for name in row if row[name])
    lines = [{name: name for name in names}, *rows]
    widths = {name: max(len(line.get(name, "")) for line in lines) for name in names}
    texts = ["  ".join(f"{line.get(n, ''):{widths[n]}s}" for n in names) for line in lines]
    return "\n".join(text.rstrip() for text in texts)


def cells(settings: Mapping[str, Any], side: Mapping[str, Any]) -> dict[str, str]:
    """Returns the cells of one program in a record of `compare`, by heading."""
    unit = "tokens/s" if "num_tokens" in settings else "images/s"
    return {
        "program": side["name"],
        "dtype": side["dtype"],
        "s a call": spread(side["seconds"]),
        unit: number(side["per_second"]),
        "first calls, s": ", ".join(map(number, side["first_seconds"])),
        "peak GiB": number(side["peak_memory_gib"]) if side["peak_memory_gib"] else "",
        "parameters": f"{sum(side['parameters'].values()):,}",
    }


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Formats records of `compare` as a table, with the cases and versions below it."""
    rows, notes, eager = [], {}, {}
    for record in records:
        settings, ours, peer = dict(record["settings"]), record["ours"], record["peer"]
        case, measurement = settings.pop("name"), settings.pop("measurement")
        notes[case] = settings
        for side in filter(None, (ours, peer)):
            notes[side["name"]] = side["versions"]
            rows.append({"case": case, "measurement": measurement, **cells(settings, side)})
        if peer:
            rows[-1]["times ours"] = spread(record["ratio"])
        pair = case, peer and peer["name"]
        if measurement == "sample":
            eager[pair] = ours
        elif measurement == "sample_compiled" and pair in eager:
            first = rows[-2 if peer else -1]
            first["pays after"] = pays_after(ours, eager[pair], settings["batch_size"])
    lines = (f"{name}: " + ", ".join(f"{k} {v}" for k, v in x.items()) for name, x in notes.items())
    return "\n".join([aligned(rows), *lines])


def pays_after(compiled: Mapping[str, Any], eager: Mapping[str, Any], batch_size: int) -> str:
    """Returns the number of images after which compilation has saved more time than it took."""
    cost = compiled["first_seconds"][0] - eager["first_seconds"][0]
    gain = median(eager["seconds"]) - median(compiled["seconds"])  # per call after the first
    if cost > 0 and gain <= 0:
        return "never"
    calls = 1 + (math.ceil(cost / gain) if cost > 0 else 0)
    return f"{calls * batch_size:,} images"
