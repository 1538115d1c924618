"""Shows records as a table."""

from collections.abc import Sequence
from typing import Any

from benchmarks.compare import Record

__all__ = ["aligned", "spread_text", "table"]

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
    """Returns what was timed on what, and a table for each case without its empty columns.

    Args:
        records: one or more, of one run; see `compare`.
    """
    first = records[0]["ours"]
    sides = {"taming": first} | {r["peer_name"]: r["peer"] for r in records if r["peer"]}
    width = max(map(len, sides))
    lines = [
        f"on {first.get('gpu', first['device'])}; processor {first['processor']}; "
        f"{first['threads']} threads",
        "ms a call, median of the rounds (least–greatest);",
        "ratio: the peer's time over ours round by round, above 1 ours is faster",
        *(f"  {name:{width}s}  {description(side)}" for name, side in sides.items()),
    ]
    for name in dict.fromkeys(r["case"]["name"] for r in records):
        of_case = [r for r in records if r["case"]["name"] == name]
        lines += ["", title(of_case), *aligned([cells(r) for r in of_case])]
    return "\n".join(lines)


def description(side: dict[str, Any]) -> str:
    """Returns a program's precision, versions and, where it has several, kind of attention."""
    precision = "float32" + (" with TF32" if side["tf32"] else "")
    if side["dtype"] == "bf16":
        precision = "bf16: autocast, in sampling the weights"
    named = {"torch": side["torch"], **side["versions"]}
    named |= {key: side[key] for key in ("attention",) if key in side}
    return f"{precision}; " + ", ".join(f"{name} {version}" for name, version in named.items())


def title(records: Sequence[Record]) -> str:
    """Returns a case in words."""
    case = records[0]["case"]
    if "num_tokens" in case:
        shape = f"tokens {case['batch_size']}×{case['num_tokens']}"
        shape += "" if case["guidance_scale"] == 1 else f", guidance {case['guidance_scale']:g}"
    else:
        shape = f"images {case['batch_size']}×3×{case['resolution']}×{case['resolution']}"
    parameters: dict[str, int] = {}
    for record in records:
        parameters |= record["ours"]["parameters"]
    numbers = ", ".join(f"{part} {number:,}" for part, number in parameters.items())
    rounds = len(records[0]["ours"]["seconds"]["rounds"])
    total = sum(parameters.values())
    return f"{case['name']}: {shape}; {rounds} rounds; {total:,} parameters: {numbers}"


def cells(record: Record) -> dict[str, str]:
    """Returns a row, by heading."""
    sides = [record[side] for side in ("ours", "peer") if record[side]]

    def each(key: str, form: str) -> str:
        return " : ".join(format(side[key], form) for side in sides if side.get(key) is not None)

    def share(key: str) -> str:
        return "" if record[key] is None else f"{record[key]:.1%}"

    pays = record["break_even"] or {}
    after = (
        "never" if "never" in pays.values() else ", ".join(f"{n:,} {u}" for u, n in pays.items())
    )
    return {
        "": TITLES[record["measurement"]],
        "peer": record["peer_name"] or "",
        "taming ms": milliseconds(record["ours"]["seconds"]),
        "peer ms": milliseconds(record["peer"]["seconds"]) if record["peer"] else "",
        "ratio": spread_text(record["ratio"], 2) if record["peer"] else "",
        **{
            f"{unit}/s": each(f"{unit}_per_second", ".4g") for unit in ("images", "steps", "tokens")
        },
        "ms a token": " : ".join(f"{1000 / side['tokens_per_second']:.3g}" for side in sides)
        if record["measurement"].startswith("sample")
        else "",
        "first call s": each("first_seconds", ".2f"),
        "peak GiB": each("peak_memory_gib", ".1f"),
        "pays after": after,
        "of peak": share("share_of_peak"),
        "of bandwidth": share("share_of_bandwidth"),
    }


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
    used = [name for name in rows[0] if any(row[name] for row in rows)]
    lines = [{name: name for name in used}, *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in used}
    return ["  ".join(f"{line[n]:{widths[n]}s}" for n in used).rstrip() for line in lines]
