"""`metrics.csv`, which every run has, and Weights & Biases as our users want it."""

import csv
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import Logger

from taming.runtime.errors import replacing

__all__ = ["MetricsFile", "TrackedRun", "finish_wandb", "read_rows", "wandb_logger"]

log = logging.getLogger("taming")


class MetricsFile(Logger):
    """Writes a row a report, a column a number, empty where a report has none.

    A resumed run continues the file: the rows of the steps it repeats are replaced. Lightning's
    `CSVLogger` deletes what an earlier session wrote.
    """

    name = "metrics"
    version = ""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        self.columns: list[str] | None = None  # None: nothing written in this session

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Ignored: the run's configuration is a file of its own."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Appends a row; a new column rewrites the file, and a full disk ends no training."""
        numbers = {name: f"{value:.7g}" for name, value in metrics.items() if name != "epoch"}
        try:
            self._write({"step": str(step), **numbers})
        except OSError as error:
            log.warning("%s cannot be written (%s); training goes on.", self.path, error)
            self.columns = None  # the file may end in half a row

    def _write(self, row: dict[str, str]) -> None:
        if self.columns is not None and set(row) <= set(self.columns):
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)
            return
        rows = read_rows(self.path)
        if self.columns is None:  # the first row of this session
            rows = [old for old in rows if int(old["step"]) < int(row["step"])]
        columns = list(rows[0]) if rows else ["step"]
        columns += [name for name in row if name not in columns]
        with replacing(self.path, newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows([*rows, row])
        self.columns = columns


def read_rows(path: Path) -> list[dict[str, str]]:
    """Returns the whole rows of a metrics.csv; a kill, a full disk or a power cut leaves others."""
    if not path.is_file():
        return []
    with path.open(newline="", errors="replace") as file:
        whole = (line for line in file if line.endswith("\n") and "\0" not in line)
        rows = list(csv.DictReader(whole))
    return [row for row in rows if None not in (*row, *row.values()) and _is_whole(row)]


def _is_whole(row: dict[str, str]) -> bool:
    try:
        [float(text) for text in row.values() if text]
    except ValueError:
        return False
    return row.get("step", "").isdecimal()


class TrackedRun(WandbLogger):
    """Lightning's logger for Weights & Biases."""

    artifacts = False  # whether models, and what they were made of, become artifacts


def wandb_logger(
    save_dir: str | Path,
    *,
    project: str = "taming",
    name: str | None = None,
    mode: Literal["online", "offline", "disabled"] | None = None,
    artifacts: bool = False,
    **settings: Any,
) -> TrackedRun:
    """Returns Lightning's logger for Weights & Biases, offline by default.

    A resumed run goes on in the same run there. In a sweep of `wandb agent` the run is the agent's.
    Lightning's own default is online, and needs an account.

    Args:
        save_dir: the run directory.
        project: name of the project.
        name: name of the run; None for the run directory's.
        mode: None for the environment variable `WANDB_MODE`, else offline.
        artifacts: see `TrackedRun`.
        settings: more arguments of `WandbLogger` and `wandb.init`.
    """
    import wandb

    run_dir = Path(save_dir)
    id_file = run_dir / "wandb_id.txt"
    if not id_file.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        run_id = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:12]
        id_file.write_text(run_id + "\n")
    mode = mode or os.environ.get("WANDB_MODE") or "offline"  # type: ignore[assignment]
    if mode == "online" and not wandb.api.api_key:
        log.warning(
            "wandb: no API key here, so this run is tracked offline. Log in with `wandb login`, or "
            "upload it later with `wandb sync`."
        )
        mode = "offline"
    logger = TrackedRun(
        name=name or run_dir.name,
        project=project,
        version=id_file.read_text().strip(),
        save_dir=run_dir.resolve(),
        mode=mode,
        settings=wandb.Settings(console="off", silent=True, init_timeout=60, finish_timeout=60),
        **settings,
    )
    logger.artifacts = artifacts
    logger._wandb_init.pop("anonymous", None)  # Lightning hands it on, and wandb warns of it
    if mode == "online":
        try:
            _ = logger.experiment
        except wandb.errors.Error as error:
            why = str(error).splitlines()[0]
            log.warning("wandb: %s. This run is tracked offline; `wandb sync` uploads it.", why)
            wandb.teardown()  # it takes the run for begun
            logger._wandb_init["mode"] = "offline"
    return logger


def finish_wandb(loggers: Sequence[Logger]) -> None:
    """Ends the run with Weights & Biases, if one was begun."""
    if any(isinstance(logger, WandbLogger) for logger in loggers):
        import wandb

        wandb.finish()
