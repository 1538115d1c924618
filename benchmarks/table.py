"""Shows records as a table."""

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.compare import Record

__all__ = ["aligned", "cells", "milliseconds", "spread_text", "table"]

TITLES = {
    "step": "training step, discriminator on",
    "step_before_start": "training step before its start",
    "autoencoder_step": "autoencoder's training step",
    "encode": "encode",
    "decode": "decode",
    "gpt_step": "training step of the transformer",
    "sample": "sampling",
    "sample_compiled": "sampling, ours compiled",
}


def table(records: Sequence[Record]) -> str:
    """Returns the programs that were timed, and a table for each case without its empty columns.

    Args:
        records: one or more, of one run; see `compare`.
    """
    sides = {s["name"]: s for r in records for s in (r["ours"], r["peer"]) if s}
    width = max(map(len, sides))
    lines = [
        "ms a call, median of the rounds (least–greatest);",
        "ratio: the peer's time over ours round by round, above 1 ours is faster",
        *(f"  {name:{width}s}  {description(side)}" for name, side in sides.items()),
    ]
    for name in dict.fromkeys(r["settings"]["name"] for r in records):
        of_case = [r for r in records if r["settings"]["name"] == name]
        rows, eager = [], {}
        for record in of_case:
            row, measurement = cells(record), record["settings"]["measurement"]
            if measurement == "sample":
                eager[row["peer"]] = record["ours"]
            elif measurement == "sample_compiled" and row["peer"] in eager:
                row["pays after"] = pays_after(record, eager[row["peer"]])
            rows.append({"": TITLES[measurement], **row})
        lines += ["", title(of_case), *aligned(rows)]
    return "\n".join(lines)


def description(side: dict[str, Any]) -> str:
    """Returns a program's precision and versions."""
    precision = side["dtype"]
    if precision == "bf16":
        precision += ": autocast, in sampling the weights"
    versions = ", ".join(f"{name} {version}" for name, version in side["versions"].items())
    return f"{precision}; {versions}"


def title(records: Sequence[Record]) -> str:
    """Returns a case in words."""
    settings = records[0]["settings"]
    if "num_tokens" in settings:
        shape = f"tokens {settings['batch_size']}×{settings['num_tokens']}"
        if settings["guidance_scale"] != 1:
            shape += f", guidance {settings['guidance_scale']:g}"
    else:
        shape = "images {batch_size}×3×{resolution}×{resolution}".format(**settings)
    numbers: dict[str, int] = {}
    for record in records:
        numbers |= record["ours"]["parameters"]
    parameters = ", ".join(f"{part} {number:,}" for part, number in numbers.items())
    return f"{settings['name']}: {shape}; {settings['rounds']} rounds; parameters: {parameters}"


def cells(record: Record) -> dict[str, str]:
    """Returns a row, by heading."""
    ours, peer, settings = record["ours"], record["peer"], record["settings"]

    def each(key: str, form: str) -> str:
        return " : ".join(format(side[key], form) for side in (ours, peer) if side and side[key])

    unit = "tokens/s" if "num_tokens" in settings else "images/s"
    return {
        "peer": peer["name"] if peer else "",
        "taming ms": milliseconds(ours["seconds"]),
        "peer ms": milliseconds(peer["seconds"]) if peer else "",
        "ratio": spread_text(record["ratio"], 2) if peer else "",
        unit: each("per_second", ".4g"),
        "first call s": each("first_seconds", ".2f"),
        "peak GiB": each("peak_memory_gib", ".1f"),
    }


def pays_after(record: Record, eager: dict[str, Any]) -> str:
    """Returns after how many images compiling has saved its time; `eager` is our plain sampling."""
    ours = record["ours"]
    spent = ours["first_seconds"] - eager["first_seconds"]
    saved = eager["seconds"]["median"] - ours["seconds"]["median"]  # by each call but the first
    if spent > 0 and saved <= 0:
        return "never"
    calls = 1 + (math.ceil(spent / saved) if spent > 0 else 0)
    return f"{calls * record['settings']['batch_size']:,} images"


def milliseconds(seconds: dict[str, float]) -> str:
    """Returns a spread of seconds in milliseconds, with a decimal where it is small."""
    return spread_text(seconds, 1 if seconds["median"] < 0.1 else 0, 1000)


def spread_text(values: dict[str, float], decimals: int, factor: int = 1) -> str:
    """Returns `median (least–greatest)`."""
    keys = ("median", "least", "greatest")
    median, least, greatest = (f"{factor * values[key]:.{decimals}f}" for key in keys)
    return f"{median} ({least}–{greatest})"


def aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    """Returns rows of cells as lines, headings first, without the columns empty in all of them."""
    names = dict.fromkeys(name for row in rows for name in row if row[name])
    lines = [{name: name for name in names}, *rows]
    widths = {name: max(len(line.get(name, "")) for line in lines) for name in names}
    return ["  ".join(f"{line.get(n, ''):{widths[n]}s}" for n in names).rstrip() for line in lines]
