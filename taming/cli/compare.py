"""`compare`: stage 1 by several recipes, side by side."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from omegaconf import DictConfig
from PIL import Image

from taming.cli.app import resolved, run_command
from taming.cli.hints import override
from taming.errors import UserError

__all__ = ["main"]


RECORD = "overrides.json"  # in each run: what it was made with


def main(config: DictConfig) -> None:
    """Trains each variant with each seed and writes their numbers into one table."""
    plain = resolved(config)
    output_dir = Path(plain["output_dir"]).expanduser()
    variants = _variants(plain)
    results: dict[str, list[dict[str, float]]] = {}
    grids: dict[str, Path] = {}
    for name, overrides in variants.items():
        runs = [output_dir / f"{_file_name(name)}_seed{seed}" for seed in plain["seeds"]]
        results[name] = [
            _metrics(_train(run, [*overrides, f"seed={seed}"]), plain["columns"])
            for run, seed in zip(runs, plain["seeds"], strict=True)
        ]
        grids[name] = max((runs[0] / "grids").glob("*.png"))
    table = _table(results, plain["columns"])
    (output_dir / "table.md").write_text(table)
    _side_by_side(list(grids.values())).save(output_dir / "grids.png")
    print(f"\n{table}\nwrote {output_dir / 'table.md'} and {output_dir / 'grids.png'} (", end="")
    print(f"images and their reconstructions, from left to right: {', '.join(grids)})")


def _variants(plain: Mapping[str, Any]) -> dict[str, list[str]]:
    """The training command's overrides of each variant."""
    if not plain["seeds"] or not plain["variants"]:
        raise UserError("give one of `seeds` and one of `variants` at least.")
    given = [
        override("data.path", plain["path"]),
        override("perceptual.weights", plain["weights"]),
        override("metrics.frechet.features.weights", plain["weights"]),
    ]
    variants = {}
    for name, variant in plain["variants"].items():
        recipe = variant["recipe"]
        if recipe not in plain["recipes"]:
            raise UserError(
                f"variant {name!r}: recipe {recipe!r} is not among recipes: "
                f"{', '.join(plain['recipes'])}."
            )
        more = [*variant.get("overrides", []), *plain["overrides"]]
        variants[name] = [*plain["common"], *given, *plain["recipes"][recipe], *more]
    return variants


def _train(run: Path, overrides: Sequence[str]) -> Path:
    """Trains, unless that very run is finished already; one that was broken off begins anew.

    Raises:
        UserError: if the folder holds something else.
    """
    record = run / RECORD
    if run.exists():
        if not record.exists() or json.loads(record.read_text()) != list(overrides):
            raise UserError(f"{run} is of other settings: give another output_dir, or delete it.")
        result = run / "result.json"
        if result.exists() and not json.loads(result.read_text())["interrupted"]:
            print(f"{run} is finished already")
            return run
        shutil.rmtree(run)
    run.mkdir(parents=True)
    record.write_text(json.dumps(overrides))
    run_command("train_vqgan", *overrides, override("run_dir", str(run)))
    return run


def _metrics(run: Path, metrics: Sequence[str]) -> dict[str, float]:
    found = json.loads((run / "result.json").read_text())["metrics"]
    for metric in metrics:
        if f"val/{metric}" not in found:
            known = ", ".join(name.removeprefix("val/") for name in found)
            raise UserError(f"columns: {run} has no {metric!r}; it has {known}.")
    return found


def _table(results: Mapping[str, Sequence[Mapping[str, float]]], metrics: Sequence[str]) -> str:
    """A Markdown table: means over seeds, and from the least to the greatest."""
    lines = [
        f"| | {' | '.join(metric.replace('_', ' ') for metric in metrics)} |",
        f"|---|{'---|' * len(metrics)}",
    ]
    for name, runs in results.items():
        cells = []
        for metric in metrics:
            values = [run[f"val/{metric}"] for run in runs]
            spread = f" ({min(values):.4g}–{max(values):.4g})" if len(values) > 1 else ""
            cells.append(f"{mean(values):.4g}{spread}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _side_by_side(paths: Sequence[Path]) -> Image.Image:
    pictures = [Image.open(path) for path in paths]
    size = (sum(p.width + 8 for p in pictures) - 8, max(p.height for p in pictures))
    canvas, left = Image.new("RGB", size, "white"), 0
    for picture in pictures:
        canvas.paste(picture, (left, 0))
        left += picture.width + 8
    return canvas


def _file_name(text: Any) -> str:
    return re.sub(r"[^a-z0-9]+", "_", str(text).lower()).strip("_")
