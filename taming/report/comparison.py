"""Tables of the runs of a sweep, or of several evaluations."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from PIL import Image

from taming.evaluation import evaluation_rows, markdown_table, protocol_differences
from taming.runtime.errors import UserError

__all__ = ["write_comparison"]

GAP = 8  # pixels between two grids


def write_comparison(
    folder: str | Path, columns: Sequence[str] | None = None
) -> tuple[str, list[str]]:
    """Writes `table.md` and, if all runs have grids, `grids.png` into a folder.

    Runs that differ only in their seed share a row. Evaluations with different protocols are in
    different tables because their numbers are not comparable.

    Args:
        folder: holds the runs of a sweep, or evaluations, at any depth.
        columns: numbers of `result.json`, such as `psnr`; None for those that all runs have.

    Returns:
        The table, and a note on each file.

    Raises:
        UserError: if the folder holds neither, or a run lacks a column.
    """
    folder = Path(folder).expanduser()
    runs: dict[str, list[Path]] = {}
    for result in sorted(folder.rglob("result.json"), key=_job_number):
        runs.setdefault(_variant(result.parent.relative_to(folder)), []).append(result.parent)
    evaluations = _evaluations(folder)
    if not runs and not evaluations:
        raise UserError(
            f"{folder} holds no finished runs and no evaluations: give the run_dir of a sweep, or "
            "a folder that evaluate has written into."
        )
    metrics = {name: [_metrics(run) for run in variant] for name, variant in runs.items()}
    if not columns:  # what all runs have, in the order of the first
        first, *rest = chain.from_iterable(metrics.values()) if metrics else [{}]
        columns = [name for name in first if all(name in run for run in rest)]
    rows = [[name, *_cells(name, variant, columns)] for name, variant in metrics.items()]
    header = ["", *(column.replace("_", " ") for column in columns)]
    text = "\n\n".join(filter(None, [markdown_table(header, rows), *_tables(evaluations)])) + "\n"
    table = folder / "table.md"
    table.write_text(text)
    notes = [str(table)]
    grids = [max((variant[0] / "grids").glob("*.png"), default=None) for variant in runs.values()]
    if grids and all(grids):
        picture = folder / "grids.png"
        _side_by_side([grid for grid in grids if grid]).save(picture)
        notes.append(f"{picture}: from left to right {', '.join(runs)}")
    return text, notes


def _evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the evaluations in a folder, by relative directory."""
    evaluations = {}
    for path in sorted(folder.rglob("metrics.json")):
        numbers = json.loads(path.read_text("utf-8"))
        if "contract" in numbers:
            evaluations[str(path.parent.relative_to(folder))] = numbers
    return evaluations


def _tables(evaluations: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yields a table for each protocol, and how the protocol differs from the first one."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for name, numbers in evaluations.items():
        groups.setdefault(numbers["contract"]["digest"], {})[name] = numbers
    protocols = [next(iter(group.values()))["contract"] for group in groups.values()]
    for protocol, group in zip(protocols, groups.values(), strict=True):
        if differences := protocol_differences(protocols[0], protocol):
            yield f"Not comparable with the first table: {'; '.join(differences)}."
        rows = {
            f"{name} {row}".strip(): values
            for name, numbers in group.items()
            for row, values in evaluation_rows(numbers)
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
    """Returns the name of a job's directory without its number and its seed."""
    return re.sub(r"^\d+_|(^|_)seed-\d+", "", str(run)).strip("_+") or "all"


def _metrics(run: Path) -> dict[str, float]:
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    return {name.removeprefix("val/"): value for name, value in metrics.items()}


def _cells(name: str, runs: Sequence[Mapping[str, float]], columns: Sequence[str]) -> Iterator[str]:
    """Yields the mean of each number over the seeds, and its range if there are several."""
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
    height = max(map(len, pictures))
    padding = [((0, height - len(picture)), (0, GAP), (0, 0)) for picture in pictures]
    padded = [np.pad(p, w, constant_values=255) for p, w in zip(pictures, padding, strict=True)]
    return Image.fromarray(np.concatenate(padded, axis=1)[:, :-GAP])
