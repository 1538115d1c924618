"""`compare`: the runs of a sweep, or several evaluations, in one table."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from omegaconf import DictConfig
from PIL import Image

from taming.cli.app import resolved
from taming.evaluation import evaluation_rows, markdown_table, protocol_differences
from taming.runtime.errors import UserError

__all__ = ["main"]

GAP = 8  # pixels between two grids


def main(config: DictConfig) -> None:
    """Writes a table of the runs' numbers, and their last grids in one picture."""
    plain = resolved(config)
    if not isinstance(plain["runs"], str):
        raise UserError("runs is one folder, that of a sweep: report takes several runs.")
    runs = Path(plain["runs"]).expanduser()
    found: dict[str, list[Path]] = {}
    for result in sorted(runs.rglob("result.json"), key=_job_number):
        found.setdefault(_variant(result.parent.relative_to(runs)), []).append(result.parent)
    evaluations = _evaluations(runs)
    if not found and not evaluations:
        raise UserError(
            f"{runs} holds no finished runs and no evaluations: give the run_dir of a sweep, or a "
            "folder of what evaluate has written."
        )
    metrics = {name: [_metrics(run) for run in some] for name, some in found.items()}
    columns = plain["columns"] or _shared(metrics)
    rows = [[name, *_cells(name, some, columns)] for name, some in metrics.items()]
    header = ["", *(column.replace("_", " ") for column in columns)]
    text = "\n\n".join(filter(None, [markdown_table(header, rows), *_tables(evaluations)])) + "\n"
    (runs / "table.md").write_text(text)
    print(f"{text}\nwrote {runs / 'table.md'}")
    grids = [max((some[0] / "grids").glob("*.png"), default=None) for some in found.values()]
    if grids and all(grids):
        _side_by_side([grid for grid in grids if grid]).save(runs / "grids.png")
        print(f"wrote {runs / 'grids.png'}: from left to right {', '.join(found)}")


def _evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads the evaluations in a folder, by their own folders' names."""
    found = {}
    for path in sorted(folder.rglob("metrics.json")):
        numbers = json.loads(path.read_text("utf-8"))
        if "contract" in numbers:
            found[str(path.parent.relative_to(folder))] = numbers
    return found


def _tables(evaluations: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yields a table of each contract, and says in which terms it is another than the first."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for name, numbers in evaluations.items():
        groups.setdefault(numbers["contract"]["digest"], {})[name] = numbers
    contracts = [next(iter(group.values()))["contract"] for group in groups.values()]
    for contract, group in zip(contracts, groups.values(), strict=True):
        if differences := protocol_differences(contracts[0], contract):
            yield f"Not comparable with the first table: {'; '.join(differences)}."
        rows = {
            f"{name} {row}".strip(): found
            for name, numbers in group.items()
            for row, found in evaluation_rows(numbers)
        }
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        yield markdown_table(
            ["", *(column.replace("_", " ") for column in columns)],
            [
                [name, *(f"{row[c]:.4g}" if c in row else "" for c in columns)]
                for name, row in rows.items()
            ],
        )


def _job_number(result: Path) -> tuple[int, str]:
    number = re.match(r"\d+", result.parent.name)
    return int(number[0]) if number else 0, str(result)


def _variant(run: Path) -> str:
    """Returns what a job's directory is named after, without its number and its seed."""
    return re.sub(r"^\d+_|(^|_)seed-\d+", "", str(run)).strip("_+") or "all"


def _metrics(run: Path) -> dict[str, float]:
    found = json.loads((run / "result.json").read_text())["metrics"]
    return {name.removeprefix("val/"): value for name, value in found.items()}


def _shared(metrics: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """Returns the names of the numbers that all runs have, in the first run's order."""
    runs = [run for some in metrics.values() for run in some]
    return [name for name in (runs[0] if runs else ()) if all(name in run for run in runs)]


def _cells(name: str, runs: Sequence[Mapping[str, float]], columns: Sequence[str]) -> Iterator[str]:
    """Yields each number's mean over the seeds, and its range where there are several."""
    for column in columns:
        for run in runs:
            if column not in run:
                raise UserError(
                    f"columns: a run of {name} has no {column!r}; it has {', '.join(run)}."
                )
        values = [run[column] for run in runs]
        spread = f" ({min(values):.4g}–{max(values):.4g})" if len(values) > 1 else ""
        yield f"{mean(values):.4g}{spread}"


def _side_by_side(paths: Sequence[Path]) -> Image.Image:
    pictures = [np.asarray(Image.open(path, formats=["PNG"])) for path in paths]  # (H W 3)
    height = max(len(picture) for picture in pictures)
    padded = [
        np.pad(picture, ((0, height - len(picture)), (0, GAP), (0, 0)), constant_values=255)
        for picture in pictures
    ]
    return Image.fromarray(np.concatenate(padded, axis=1)[:, :-GAP])
