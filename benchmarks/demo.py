"""Runs the demo with several seeds, one after the other: how good it is, and what it costs.

    python -m benchmarks.demo --seeds 0 1 2 3 4

The demos stay in `--output`, with their reports together in `seeds.json`.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare import ROOT, spread
from benchmarks.machine import machine
from benchmarks.table import aligned, spread_text

COLUMNS = {  # heading: entry of the report, what it is multiplied by, decimals
    "agreement %": ("agreement", 100, 1),
    "PSNR dB": ("psnr", 1, 1),
    "distance ratio": ("distance_ratio", 1, 2),
    "bits per token": ("bits_per_token", 1, 3),
    "codes used %": ("codebook_usage", 100, 0),
    "seconds": ("total_seconds", 1, 0),
    "products": ("products", 1, 0),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row a seed, and the mean and spread of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--output", type=Path, default=Path("outputs/demo_seeds"))
    parser.add_argument("--set", nargs="+", default=[], help="settings of the demo")
    options = parser.parse_args(arguments)
    reports = {}
    for seed in options.seeds:
        directory = options.output.resolve() / f"seed_{seed}"
        settings = [f"seed={seed}", f"output_dir={directory}", *options.set]
        started = time.monotonic()
        subprocess.run([sys.executable, "scripts/demo.py", *settings], cwd=ROOT, check=True)
        seconds = time.monotonic() - started
        report = json.loads((directory / "report.json").read_text())
        reports[seed] = {**report, "total_seconds": seconds}
        # written after each: a long run that is broken off leaves what it has
        (options.output / "seeds.json").write_text(json.dumps(reports, indent=2) + "\n")
    print(f"\n{machine()}; {reports[options.seeds[0]]['num_samples']} samples a seed")
    print("\n".join(table(reports)))
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    print(f"the largest process took {largest:.2f} GB")


def table(reports: dict[int, dict[str, float]]) -> list[str]:
    """Returns a line for each seed's report, one of means, and one of medians with ranges."""
    rows = [{"seed": str(seed)} for seed in reports] + [{"seed": "mean"}, {"seed": "median"}]
    for heading, (name, factor, decimals) in COLUMNS.items():
        values = [report[name] for report in reports.values()]
        shown = [*values, sum(values) / len(values)]
        cells = [f"{factor * value:.{decimals}f}" for value in shown]
        cells.append(spread_text(spread(values), decimals, factor))
        for row, cell in zip(rows, cells, strict=True):
            row[heading] = cell
    return aligned(rows)


if __name__ == "__main__":
    main()
