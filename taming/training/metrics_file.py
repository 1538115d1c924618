"""`metrics.csv`, which every run writes."""

import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from taming.runtime.errors import replacing

__all__ = ["MetricsFile", "read_rows"]

log = logging.getLogger("taming")


class MetricsFile(Logger):
    """Writes one row per report and one column per metric; missing metrics are empty.

    A resumed run continues the file and replaces the rows of the steps that it repeats. Lightning's
    `CSVLogger` deletes the rows of earlier sessions.
    """

    name = "metrics"
    version = ""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        self.columns: list[str] | None = None  # None before the first row of this session

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: config.yaml holds the settings."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Appends a row. New columns rewrite the file, and a full disk only gives a warning."""
        numbers = {name: f"{value:.7g}" for name, value in metrics.items() if name != "epoch"}
        try:
            self._write({"step": str(step), **numbers})
        except OSError as error:
            log.warning("%s cannot be written (%s). Training continues.", self.path, error)
            self.columns = None  # the file may end in half a row

    def _write(self, row: dict[str, str]) -> None:
        if self.columns is not None and set(row) <= set(self.columns):
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)
            return
        rows = read_rows(self.path)
        if self.columns is None:  # the first row of this session
            rows = [earlier for earlier in rows if int(earlier["step"]) < int(row["step"])]
        columns = list(rows[0]) if rows else ["step"]
        columns += [name for name in row if name not in columns]
        with replacing(self.path, newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows([*rows, row])
        self.columns = columns


def read_rows(path: Path) -> list[dict[str, str]]:
    """Returns the complete rows of a metrics.csv; a kill or a full disk leaves incomplete ones."""
    if not path.is_file():
        return []
    with path.open(newline="", errors="replace") as file:
        lines = (line for line in file if line.endswith("\n") and "\0" not in line)
        rows = list(csv.DictReader(lines))
    return [row for row in rows if None not in (*row, *row.values()) and _is_numeric(row)]


def _is_numeric(row: dict[str, str]) -> bool:
    try:
        [float(text) for text in row.values() if text]
    except ValueError:
        return False
    return row.get("step", "").isdecimal()
