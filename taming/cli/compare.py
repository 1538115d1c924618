"""`compare`: the runs of a sweep, side by side."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

from omegaconf import DictConfig
from PIL import Image

from taming.cli.app import resolved
from taming.errors import UserError

__all__ = ["main"]


def main(config: DictConfig) -> None:
    """Writes a table of the runs' numbers, and their last grids in one picture."""
    plain = resolved(config)
    runs = Path(plain["runs"]).expanduser()
    found: dict[str, list[Path]] = {}
    for result in sorted(runs.rglob("result.json"), key=_job_number):
        found.setdefault(_variant(result.parent.relative_to(runs)), []).append(result.parent)
    if not found:
        raise UserError(f"{runs} holds no finished runs: give the run_dir of a sweep.")
    numbers = {
        name: [_metrics(run, plain["columns"]) for run in some] for name, some in found.items()
    }
    text = _table(numbers, plain["columns"])
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


def _metrics(run: Path, columns: Sequence[str]) -> dict[str, float]:
    found = json.loads((run / "result.json").read_text())["metrics"]
    for column in columns:
        if f"val/{column}" not in found:
            known = ", ".join(name.removeprefix("val/") for name in found)
            raise UserError(f"columns: {run} has no {column!r}; it has {known}.")
    return {column: found[f"val/{column}"] for column in columns}


def _table(numbers: Mapping[str, Sequence[Mapping[str, float]]], columns: Sequence[str]) -> str:
    """Lays out a Markdown table: means over seeds, and the range where there are several."""
    lines = [
        f"| | {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for name, runs in numbers.items():
        cells = []
        for column in columns:
            values = [run[column] for run in runs]
            spread = f" ({min(values):.4g}–{max(values):.4g})" if len(values) > 1 else ""
            cells.append(f"{mean(values):.4g}{spread}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _side_by_side(paths: Sequence[Path]) -> Image.Image:
    with ExitStack() as stack:
        pictures = [stack.enter_context(Image.open(path)) for path in paths]
        size = (sum(p.width + 8 for p in pictures) - 8, max(p.height for p in pictures))
        canvas, left = Image.new("RGB", size, "white"), 0
        for picture in pictures:
            canvas.paste(picture, (left, 0))
            left += picture.width + 8
    return canvas
