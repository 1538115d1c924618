"""Records as a table: python -m benchmarks.table RESULTS.jsonl."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Record

__all__ = ["TITLES", "table"]

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
    """What was timed on what, and a table for each case; empty columns are left out.

    Args:
        records: one or more, of one run; see `timing.compare`.
    """
    first = records[0]["ours"]
    sides = {"taming": first}
    sides |= {r["peer_name"]: r["peer"] for r in records if r["peer"] is not None}
    width = max(len(name) for name in sides)
    lines = [
        f"on {first['device']}: {first['device_name']}",
        f"processor: {first['processor']}; {first['threads']} threads",
        f"ms a call, median of {len(first['seconds']['rounds'])} rounds (least–greatest);",
        "ratio: the peer's time over ours round by round, above 1 ours is faster",
        *(f"  {name:{width}s}  {described(side)}" for name, side in sides.items()),
    ]
    for name in dict.fromkeys(r["case"]["name"] for r in records):
        of_case = [r for r in records if r["case"]["name"] == name]
        lines += ["", title(of_case), *aligned([cells(r) for r in of_case])]
    return "\n".join(lines)


def described(side: dict[str, Any]) -> str:
    """A program's precision and versions, and how it computes attention where it is a choice."""
    precision = "float32" + (" with TF32" if side["tf32"] else "")
    if side["dtype"] == "bf16":
        precision = "bf16, autocast; the weights' in sampling"
    named = {"torch": side["torch"], **side["versions"]}
    if "attention" in side:
        named["attention"] = side["attention"]
    return "; ".join([precision, ", ".join(f"{name} {v}" for name, v in named.items())])


def title(records: Sequence[Record]) -> str:
    """A case in words."""
    case = records[0]["case"]
    size, resolution = case["batch_size"], case.get("resolution")
    shape = f"images {size}×3×{resolution}×{resolution}"
    if "num_tokens" in case:
        guidance = case["guidance_scale"]
        guided = "" if guidance == 1 else f", guidance {guidance:g}"
        shape = f"tokens {size}×{case['num_tokens']}{guided}"
    parameters: dict[str, int] = {}
    for record in records:
        parameters |= record["ours"]["parameters"]
    numbers = ", ".join(f"{part} {number:,}" for part, number in parameters.items())
    total = f" ({sum(parameters.values()):,})" if len(parameters) > 1 else ""
    return f"{case['name']}: {shape}; parameters{total}: {numbers}"


def cells(record: Record) -> dict[str, str]:
    """A row, by heading."""
    ours, peer = record["ours"], record["peer"]

    def both(text: Callable[[dict[str, Any]], str]) -> str:
        return text(ours) if peer is None else f"{text(ours)} : {text(peer)}"

    on_gpu = ours["peak_memory_gib"] is not None
    pays = record["break_even"] or {}
    if "never" in pays.values():
        pays_after = "never"
    else:
        pays_after = ", ".join(f"{number:,} {unit}" for unit, number in pays.items())
    units = [unit for unit in ("images", "steps", "tokens") if f"{unit}_per_second" in ours]
    return {
        "": TITLES[record["measurement"]],
        "peer": record["peer_name"] or "",
        "taming ms": milliseconds(ours["seconds"]),
        "peer ms": "" if peer is None else milliseconds(peer["seconds"]),
        "ratio": "" if peer is None else spread_text(record["ratio"], 2),
        **{
            f"{unit}/s": both(lambda side, u=unit: f"{side[f'{u}_per_second']:.4g}")
            for unit in units
        },
        "first call s": both(lambda side: f"{side['first_seconds']:.2f}"),
        "peak GiB": both(lambda side: f"{side['peak_memory_gib']:.1f}") if on_gpu else "",
        "pays after": pays_after,
        "of peak": percent(record["share_of_peak"]),
        "of bandwidth": percent(record["share_of_bandwidth"]),
    }


def percent(share: float | None) -> str:
    """With a decimal; nothing for None."""
    return "" if share is None else f"{share:.1%}"


def milliseconds(seconds: dict[str, float]) -> str:
    """A spread of seconds, with a decimal where it is small."""
    in_ms = {key: 1000 * seconds[key] for key in ("median", "least", "greatest")}
    return spread_text(in_ms, 1 if in_ms["median"] < 100 else 0)


def spread_text(values: dict[str, float], decimals: int) -> str:
    """`median (least–greatest)`."""
    median, least, greatest = (
        f"{values[key]:.{decimals}f}" for key in ("median", "least", "greatest")
    )
    return f"{median} ({least}–{greatest})"


def aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    """Rows of cells as lines, headings first, without the columns that are empty in all."""
    names = max(rows, key=len)
    used = [name for name in names if any(row.get(name) for row in rows)]
    lines = [dict(zip(used, used, strict=True)), *rows]
    widths = {name: max(len(row.get(name, "")) for row in lines) for name in used}
    return ["  ".join(f"{row.get(n, ''):{widths[n]}s}" for n in used).rstrip() for row in lines]


if __name__ == "__main__":
    print(table([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
