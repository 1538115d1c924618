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

from taming.cli.app import command, resolved, run_command
from taming.errors import UserError

__all__ = ["main"]


@command("compare")
def main(config: DictConfig) -> None:
    """Trains each variant with each seed and writes their numbers into one table."""
    plain = resolved(config)
    output_dir = Path(plain["output_dir"])
    results: dict[str, list[dict[str, float]]] = {}
    grids: dict[str, Path] = {}
    for name, variant in plain["variants"].items():
        overrides = [
            *plain["common"],
            *_recipe(plain["recipes"], variant["recipe"]),
            *variant.get("overrides", []),
            *plain["overrides"],
        ]
        runs = [output_dir / f"{_file_name(name)}_seed{seed}" for seed in plain["seeds"]]
        for run, seed in zip(runs, plain["seeds"], strict=True):
            _train(run, [*overrides, f"seed={seed}"], plain["max_steps"])
        results[name] = [json.loads((run / "result.json").read_text())["metrics"] for run in runs]
        grids[name] = max((runs[0] / "grids").glob("*.png"))
    table = _table(results, plain["metrics"])
    (output_dir / "table.md").write_text(table)
    _side_by_side(list(grids.values())).save(output_dir / "grids.png")
    print(f"\n{table}\nwrote {output_dir / 'table.md'} and {output_dir / 'grids.png'} (", end="")
    print(f"images and their reconstructions, from left to right: {', '.join(grids)})")


def _recipe(recipes: Mapping[str, Sequence[str]], name: str) -> Sequence[str]:
    if name not in recipes:
        raise UserError(f"recipe {name!r} is not among recipes: {', '.join(recipes)}.")
    return recipes[name]


def _train(run: Path, overrides: Sequence[str], max_steps: int) -> None:
    """Trains unless the run is finished already; one that was broken off begins anew."""
    result = run / "result.json"
    if result.exists() and json.loads(result.read_text())["step"] == max_steps:
        print(f"{run} is finished already")
        return
    shutil.rmtree(run, ignore_errors=True)
    run_command("train_vqgan", *overrides, f"run_dir={run}")


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
