"""Reads what a run directory says about its run."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from taming.runtime.errors import MissingPathError, UserError
from taming.training import TrainingResult
from taming.training.metrics_file import read_rows

__all__ = ["RunRecord", "Series", "is_run", "read_run"]


Series = tuple[np.ndarray, np.ndarray]  # steps and values
RESULT_TYPES = {
    name: TypeAdapter(hint)
    for name, hint in get_type_hints(TrainingResult, include_extras=True).items()
}


@dataclass(frozen=True)
class RunRecord:
    """A run as its files describe it. Whatever is missing is empty.

    Attributes:
        path: the run directory.
        name: a short name, unique within a report.
        config: the resolved configuration.
        metrics: the columns of metrics.csv.
        result: result.json. A resumed run keeps the earlier one until it ends.
        evaluations: the content of each metrics.json, by its relative directory.
    """

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Series] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    evaluations: dict[str, Any] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        return max((int(steps[-1]) for steps, _ in self.metrics.values()), default=0)

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended and was not resumed since."""
        return bool(self.result) and self.last_step <= self.result.get("step", self.last_step)

    def setting(self, name: str) -> Any:
        """Returns a setting by its full name, such as `trainer.max_steps`, or None."""
        value: Any = self.config
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def last_metrics(self) -> dict[str, float]:
        """Returns the metrics of the exported model; without one, of the latest validation."""
        return dict(self.result.get("metrics") or self.latest_metrics())

    def latest_metrics(self) -> dict[str, float]:
        """Returns the metrics of the latest validation."""
        columns = self.metrics.items()
        return {name: s[1][-1].item() for name, s in columns if name.startswith("val/")}


def is_run(path: Path) -> bool:
    """Returns whether a directory belongs to a training run."""
    return (path / "config.yaml").is_file() or (path / "metrics.csv").is_file()


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """Reads the directory of a finished or unfinished run.

    Raises:
        MissingPathError: if the directory does not exist.
        UserError: if it is not a run directory.
    """
    if not path.is_dir():
        raise MissingPathError(f"{path} is not a directory. Give a run directory.")
    if not is_run(path):
        raise UserError(
            f"{path} is not a run directory because it has neither metrics.csv nor config.yaml."
        )
    evaluations = {
        str(file.relative_to(path).parent): _read(file)
        for file in sorted(path.rglob("metrics.json"))
    }
    return RunRecord(
        path,
        name or path.resolve().name,
        _read(path / "config.yaml"),
        _read_metrics(path / "metrics.csv"),
        _read_result(path / "result.json"),
        evaluations,
    )


def _read_result(path: Path) -> dict[str, Any]:
    """Returns the known entries of a result.json; nothing if it is damaged."""
    values = _read(path)
    try:
        return {
            name: adapter.validate_python(values[name])
            for name, adapter in RESULT_TYPES.items()
            if name in values
        }
    except ValidationError:
        return {}


def _read_metrics(path: Path) -> dict[str, Series]:
    """Returns the steps and values of each column of a metrics.csv."""
    columns: dict[str, list[tuple[int, float]]] = {}
    for row in read_rows(path):
        step = int(row.pop("step"))
        for name, text in row.items():
            if text:  # a row has values in some columns only
                columns.setdefault(name, []).append((step, float(text)))
    return {
        name: (np.array([step for step, _ in rows]), np.array([value for _, value in rows]))
        for name, rows in columns.items()
    }


def _read(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON or YAML dictionary; nothing if it cannot be read."""
    try:
        text = path.read_text("utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
