"""`compare`: the runs of a sweep in one table."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from omegaconf import DictConfig
from PIL import Image

from taming.cli.app import resolved
from taming.errors import UserError
from taming.evaluation import markdown_table

__all__ = ["main"]

GAP = 8  # pixels between two grids


def main(config: DictConfig) -> None:
    """Writes a table of the runs' numbers, and their last grids in one picture."""
    plain = resolved(config)
    runs = Path(plain["runs"]).expanduser()
    found: dict[str, list[Path]] = {}
    for result in sorted(runs.rglob("result.json"), key=_job_number):
        found.setdefault(_variant(result.parent.relative_to(runs)), []).append(result.parent)
    if not found:
        raise UserError(f"{runs} holds no finished runs: give the run_dir of a sweep.")
    rows = [[name, *_cells(some, plain["columns"])] for name, some in found.items()]
    header = ["", *(column.replace("_", " ") for column in plain["columns"])]
    text = markdown_table(header, rows) + "\n"
    (runs / "table.md").write_text(text)
    print(f"{text}\nwrote {runs / 'table.md'}")
    grids = [max((some[0] / "grids").glob("*.png"), default=None) for some in found.values()]
    if all(grids):
        _side_by_side([grid for grid in grids if grid]).save(runs / "grids.png")
        print(f"wrote {runs / 'grids.png'}: from left to right {', '.join(found)}")


def _job_number(result: Path) -> tuple[int, str]:
    number = re.match(r"\d+", result.parent.name)
    return int(number[0]) if number else 0, str(result)


def _variant(run: Path) -> str:
    """Returns what a job's directory is named after, without its number and its seed."""
    return re.sub(r"^\d+_|(^|_)seed-\d+", "", str(run)).strip("_+") or "all"


def _cells(runs: Sequence[Path], columns: Sequence[str]) -> Iterator[str]:
    """Yields each number's mean over the seeds, and its range where there are several."""
    metrics = [_metrics(run, columns) for run in runs]
    for column in columns:
        values = [found[column] for found in metrics]
        spread = f" ({min(values):.4g}–{max(values):.4g})" if len(values) > 1 else ""
        yield f"{mean(values):.4g}{spread}"


def _metrics(run: Path, columns: Sequence[str]) -> dict[str, float]:
    found = json.loads((run / "result.json").read_text())["metrics"]
    for column in columns:
        if f"val/{column}" not in found:
            known = ", ".join(name.removeprefix("val/") for name in found)
            raise UserError(f"columns: {run} has no {column!r}; it has {known}.")
    return {column: found[f"val/{column}"] for column in columns}


def _side_by_side(paths: Sequence[Path]) -> Image.Image:
    pictures = [np.asarray(Image.open(path)) for path in paths]  # (H W 3)
    height = max(len(picture) for picture in pictures)
    padded = [
        np.pad(picture, ((0, height - len(picture)), (0, GAP), (0, 0)), constant_values=255)
        for picture in pictures
    ]
    return Image.fromarray(np.concatenate(padded, axis=1)[:, :-GAP])
