"""Comparisons as a table to read."""

import math
from collections.abc import Callable, Sequence

from taming.workflows.benchmark.cases import AutoencoderCase
from taming.workflows.benchmark.timing import Comparison, Spread, Timing

__all__ = ["comparison_table"]


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """What was timed on what, and a table for each case; empty columns are left out.

    Args:
        comparisons: one or more, of one run.
    """
    first = comparisons[0].ours
    sides = {"taming": first}
    sides |= {c.peer_name or "": c.peer for c in comparisons if c.peer is not None}
    width = max(len(name) for name in sides)
    lines = [
        f"on {first.settings['device']}: {first.facts['device_name']}, {first.facts['threads']} "
        f"threads; ms a call, median of {len(first.seconds)} rounds (least–greatest);",
        "ratio: the peer's time over ours round by round, above 1 ours is faster",
        *(
            f"  {name:{width}s}  {precision(side)}; {versions(side)}"
            for name, side in sides.items()
        ),
    ]
    for case in dict.fromkeys(c.case.name for c in comparisons):
        of_case = [c for c in comparisons if c.case.name == case]
        lines += ["", title(of_case), *aligned([cells(c) for c in of_case])]
    return "\n".join(lines)


def precision(side: Timing) -> str:
    """In words."""
    if side.settings["dtype"] == "bf16":
        if side.settings["kind"] == AutoencoderCase.KIND:
            return "bf16 autocast"
        return "bf16, autocast in training, the weights' in sampling"
    return "float32" + (" with TF32" if side.settings["tf32"] else "")


def versions(side: Timing) -> str:
    """Of PyTorch and the programs, and how they compute attention where it is a choice."""
    named = {"torch": side.facts["torch"], **side.facts["versions"]}
    if "attention" in side.facts:
        named["attention"] = side.facts["attention"]
    return ", ".join(f"{name} {version}" for name, version in named.items())


def title(comparisons: Sequence[Comparison]) -> str:
    """A case in words."""
    case = comparisons[0].case
    parameters: dict[str, int] = {}
    for comparison in comparisons:
        parameters |= comparison.ours.facts["parameters"]
    numbers = ", ".join(f"{part} {number:,}" for part, number in parameters.items())
    total = f" ({sum(parameters.values()):,})" if len(parameters) > 1 else ""
    return f"{case.name}: {case.shape}; parameters{total}: {numbers}"


def cells(comparison: Comparison) -> dict[str, str]:
    """A row, by heading."""
    ours, peer, ratio = comparison.ours, comparison.peer, comparison.ratio
    on_gpu = ours.peak_memory_gib is not None

    def both(text: Callable[[Timing], str]) -> str:
        return text(ours) if peer is None else f"{text(ours)} : {text(peer)}"

    return {
        "": comparison.case.MEASUREMENTS[comparison.measurement],
        "peer": comparison.peer_name or "",
        "taming ms": in_milliseconds(ours.spread),
        "peer ms": "" if peer is None else in_milliseconds(peer.spread),
        "ratio": "" if ratio is None else spread_text(ratio, 2),
        **{
            f"{unit}/s": both(lambda side, u=unit: f"{side.per_second[u]:.4g}")  # type: ignore[misc]
            for unit in ours.work
        },
        "first call s": both(lambda side: f"{side.first_seconds:.2f}"),
        "peak GiB": both(lambda side: f"{side.peak_memory_gib:.1f}") if on_gpu else "",
        "pays after": break_even(comparison),
        "of peak": percent(comparison.share_of_peak),
        "of bandwidth": percent(comparison.share_of_bandwidth),
    }


def break_even(comparison: Comparison) -> str:
    """When compiling has saved the time it took, if it ever does."""
    pays = comparison.break_even
    if pays is None:
        return ""
    if not math.isfinite(pays["images"]):
        return "never"
    return ", ".join(f"{number:,.0f} {unit}" for unit, number in pays.items())


def percent(share: float | None) -> str:
    """With a decimal."""
    return "" if share is None else f"{share:.1%}"


def in_milliseconds(seconds: Spread) -> str:
    """A spread of seconds, with a decimal where it is small."""
    in_ms = Spread(*(1000 * value for value in (seconds.median, seconds.least, seconds.greatest)))
    return spread_text(in_ms, 1 if in_ms.median < 100 else 0)


def spread_text(spread: Spread, decimals: int) -> str:
    """`median (least–greatest)`."""
    numbers = (spread.median, spread.least, spread.greatest)
    median, least, greatest = (f"{number:.{decimals}f}" for number in numbers)
    return f"{median} ({least}–{greatest})"


def aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    """Rows of cells as lines, headings first, without the columns that are empty in all."""
    longest = max(rows, key=len)
    used = [name for name in longest if any(row.get(name) for row in rows)]
    table = [{name: name for name in used}, *({n: row.get(n, "") for n in used} for row in rows)]
    widths = {name: max(len(row[name]) for row in table) for name in used}
    return ["  ".join(f"{row[name]:{widths[name]}s}" for name in used).rstrip() for row in table]
