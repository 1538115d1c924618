"""Runs the demo with several seeds in turn, and tabulates its quality, time and memory.

    python -m benchmarks.demo --seeds 0 1 2 3 4

`--output` keeps the demos, and collects their reports in `seeds.json`.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from benchmarks.compare import ROOT
from benchmarks.machine import machine
from benchmarks.table import aligned, number, spread

COLUMNS = (  # entries of the reports
    *("agreement", "psnr", "distance_ratio", "bits_per_token", "codebook_usage"),
    *("total_seconds", "products"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row for each seed, and the mean and the spread."""
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
        # after each demo, so that an interrupted run keeps its results
        (options.output / "seeds.json").write_text(json.dumps(reports, indent=2) + "\n")
    values = {name: [report[name] for report in reports.values()] for name in COLUMNS}
    rows = [
        {"seed": str(seed), **{name: number(report[name]) for name in COLUMNS}}
        for seed, report in reports.items()
    ]
    rows.append({"seed": "mean", **{name: number(mean(column)) for name, column in values.items()}})
    rows.append({"seed": "median", **{name: spread(column) for name, column in values.items()}})
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    print(f"\n{machine()}; {report['num_samples']} samples per seed")
    print(f"{aligned(rows)}\nthe largest process used {largest:.2f} GB")


if __name__ == "__main__":
    main()
