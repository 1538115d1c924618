"""What a run directory says about its run."""

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
HINTS = get_type_hints(TrainingResult, include_extras=True)
RESULT = {name: TypeAdapter(hint) for name, hint in HINTS.items()}


@dataclass(frozen=True)
class RunRecord:
    """A run as its files tell it; what is missing is empty.

    Attributes:
        path: the run directory.
        name: short name, unique among the runs of a report.
        config: the resolved configuration.
        metrics: metrics.csv, by column.
        result: result.json, which only a finished run has.
        evaluations: each metrics.json in the directory, by its path in there.
    """

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Series] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    evaluations: dict[str, Any] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """The last step that metrics.csv knows of."""
        return max((int(steps[-1]) for steps, _ in self.metrics.values()), default=0)

    def setting(self, name: str) -> Any:
        """Returns a setting by its name, such as `trainer.max_steps`; None if there is none."""
        found: Any = self.config
        for key in name.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return found


def is_run(path: Path) -> bool:
    """Whether a training writes, or wrote, into this directory."""
    return (path / "config.yaml").is_file() or (path / "metrics.csv").is_file()


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """Reads a run directory, of a finished run or one that goes on.

    Raises:
        MissingPathError: if the directory does not exist.
        UserError: if it holds no run.
    """
    if not path.is_dir():
        raise MissingPathError(f"{path} is no directory: give the run directory of a training.")
    if not is_run(path):
        raise UserError(
            f"{path} is no run directory, for it has neither metrics.csv nor config.yaml: give "
            "one that a training has written."
        )
    evaluations = {
        str(found.relative_to(path).parent): _read(found)
        for found in sorted(path.rglob("metrics.json"))
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
    """Returns what a result.json says, in older versions less; nothing if it is damaged."""
    found = _read(path)
    try:
        return {name: RESULT[name].validate_python(found[name]) for name in RESULT if name in found}
    except ValidationError:
        return {}


def _read_metrics(path: Path) -> dict[str, Series]:
    """Returns steps and values of each column of a metrics.csv; empty if there is no file."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in read_rows(path):
        step = int(row.pop("step"))
        for column, text in row.items():
            if text:  # else not part of this report
                found.setdefault(column, []).append((step, float(text)))
    return {
        column: (np.array([step for step, _ in rows]), np.array([value for _, value in rows]))
        for column, rows in found.items()
    }


def _read(path: Path) -> dict[str, Any]:
    """Returns what a JSON or YAML file holds by name; nothing if it cannot be read."""
    try:
        text = path.read_text("utf-8")
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
