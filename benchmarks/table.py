"""Sides take turns, and what they took is a table."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

import numpy as np

__all__ = ["aligned", "cells", "number", "ratios", "spread", "table", "take_turns"]

T = TypeVar("T")


def take_turns(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Calls each side once a round, and returns what they gave.

    The order changes from round to round, so that a machine that slows down or speeds up favours no
    side.
    """
    found: dict[str, list[T]] = {name: [] for name in sides}
    for index in range(rounds):
        for name in list(sides)[:: -1 if index % 2 else 1]:
            found[name].append(sides[name]())
    return found


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Returns the quotients of two sides round by round."""
    return [a / b for a, b in zip(over, under, strict=True)]


def number(value: float) -> str:
    """Returns a number with four significant digits."""
    return np.format_float_positional(value, 4, unique=False, fractional=False, trim="-")


def spread(values: Sequence[float]) -> str:
    """Returns `median (least–greatest)`."""
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


def aligned(rows: Sequence[Mapping[str, str]]) -> str:
    """Lays out rows of cells, headings first, without the columns empty in all of them."""
    names = dict.fromkeys(name for row in rows for name in row if row[name])
    lines = [{name: name for name in names}, *rows]
    widths = {name: max(len(line.get(name, "")) for line in lines) for name in names}
    texts = ["  ".join(f"{line.get(n, ''):{widths[n]}s}" for n in names) for line in lines]
    return "\n".join(text.rstrip() for text in texts)


def cells(settings: Mapping[str, Any], side: Mapping[str, Any]) -> dict[str, str]:
    """Returns what one side of a record of `compare` took, by heading."""
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
    """Lays out records of `compare`, and says below which cases and versions were timed."""
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
    """Returns after how many images compiling has saved the time that its first call took."""
    spent = compiled["first_seconds"][0] - eager["first_seconds"][0]
    saved = median(eager["seconds"]) - median(compiled["seconds"])  # by each call but the first
    if spent > 0 and saved <= 0:
        return "never"
    calls = 1 + (math.ceil(spent / saved) if spent > 0 else 0)
    return f"{calls * batch_size:,} images"
