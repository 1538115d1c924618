"""Where a run's numbers and pictures go: metrics.csv always, Weights & Biases if asked for."""

import csv
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from PIL import Image

__all__ = ["CSVTracker", "Tracker", "WandbTracker"]

log = logging.getLogger("taming")


class Tracker(Protocol):
    """What a run reports to. `step` is the run's own step counter."""

    def metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Records numbers."""

    def image(self, name: str, image: Image.Image, step: int) -> None:
        """Records a picture."""

    def alert(self, text: str, step: int) -> None:
        """Records a warning."""

    def finish(self) -> None:
        """Called once, at the end of the run."""


class CSVTracker:
    """`metrics.csv`: a row a report, a column a number, empty where a report has none.

    Args:
        path: the file. If it exists the run continues in it, without the rows after `first_step`,
            which the resumed run is about to repeat, and without those that are not whole.
        first_step: the step the run (re)starts from.
    """

    def __init__(self, path: Path, first_step: int = 0) -> None:
        self.path = path
        self.columns = ["step"]
        self.failed = False
        if path.exists():
            rows = [row for row in self._read() if int(row["step"]) <= first_step]
            self._rewrite(rows)

    def metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Appends a row; a new column, or a failure before, rewrites the file."""
        row = {"step": str(step), **{name: f"{value:.7g}" for name, value in metrics.items()}}
        try:
            if self.failed or not row.keys() <= set(self.columns) or not self.path.exists():
                rows = self._read() if self.path.exists() else []
                self.columns += [name for name in row if name not in self.columns]
                self._rewrite([*rows, row])
            else:
                with self.path.open("a", newline="") as file:
                    csv.DictWriter(file, self.columns).writerow(row)
            self.failed = False
        except OSError as error:
            if not self.failed:
                log.warning("%s cannot be written (%s); training goes on.", self.path, error)
            self.failed = True

    def image(self, name: str, image: Image.Image, step: int) -> None:
        """Pictures are no numbers: ignored (they are files in the run directory already)."""

    def alert(self, text: str, step: int) -> None:
        """Ignored: the file counts warnings in a column of its own, `train/warnings`."""

    def finish(self) -> None:
        """Nothing to do: each row is on disk when `metrics` returns."""

    def _read(self) -> list[dict[str, str]]:
        """The rows that are whole: not cut, not glued to another, no NUL bytes."""
        with self.path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            lines = list(file)
        reader = csv.DictReader(line for line in lines if line.endswith("\n") and "\0" not in line)
        columns = list(reader.fieldnames or [])
        rows = [
            row
            for row in reader
            if None not in (*row.keys(), *row.values()) and row.get("step", "").isdecimal()
        ]
        self.columns = columns if "step" in columns else ["step"]
        num_damaged = len(lines) - 1 - len(rows)
        if num_damaged > 0 and not self.failed:  # of a failure there was word already
            kept = self.path.with_name("metrics.damaged.csv")
            shutil.copyfile(self.path, kept)
            log.warning(
                "%s: damaged rows left out: %d (a full disk or a power cut leaves such); %s has "
                "all that there was.",
                self.path,
                num_damaged,
                kept.name,
            )
        return rows

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        unfinished = self.path.with_suffix(".csv.unfinished")
        with unfinished.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)
        unfinished.replace(self.path)


class WandbTracker:
    """Weights & Biases, in the run directory, offline unless asked; its failures stop no run.

    Args:
        run_dir: its files go to `run_dir/wandb`.
        settings: the run's resolved configuration.
        project: name of the project.
        name: name of the run; None takes the run directory's.
        mode: `"offline"`, `"online"` or `"disabled"`; None takes the environment variable
            `WANDB_MODE`, else offline.
    """

    def __init__(
        self,
        run_dir: Path,
        settings: Mapping[str, Any],
        *,
        project: str = "taming",
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        self.run: Any = None
        mode = mode or os.environ.get("WANDB_MODE") or "offline"  # type: ignore[assignment]
        with self._harmless():
            import wandb

            if mode == "online" and not wandb.api.api_key:
                log.warning(
                    "wandb: no API key here, so this run is tracked offline. Log in with "
                    "`wandb login`, or upload it later with `wandb sync`."
                )
                mode = "offline"
            id_file = run_dir / "wandb_id.txt"
            run_id = id_file.read_text().strip() if id_file.exists() else uuid.uuid4().hex[:12]
            self.run = wandb.init(
                project=project,
                name=name or run_dir.name,
                id=run_id,
                resume="allow" if mode == "online" else None,
                mode=mode,
                dir=run_dir.resolve(),  # its service process may be in another directory
                config=dict(settings),
                settings=wandb.Settings(
                    console="off", silent=True, init_timeout=120, finish_timeout=60
                ),
            )
            id_file.write_text(run_id + "\n")
            self.run.define_metric("*", step_metric="step")

    def metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs numbers with `step` as their horizontal axis."""
        if self.run is not None:
            with self._harmless():
                self.run.log({**metrics, "step": step})

    def image(self, name: str, image: Image.Image, step: int) -> None:
        """Logs a picture."""
        if self.run is not None:
            with self._harmless():
                import wandb

                self.run.log({name: wandb.Image(image), "step": step})  # writes a file first

    def alert(self, text: str, step: int) -> None:
        """Raises an alert on the run's page."""
        if self.run is not None:
            with self._harmless():
                self.run.alert(title=f"step {step}", text=text)

    def finish(self) -> None:
        """Writes what is left; returns even if the service does not answer."""
        if self.run is not None:
            with self._harmless():
                self.run.finish()

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Gives wandb up at its first failure, whatever that is: it must not stop the training."""
        try:
            yield
        except Exception as error:
            self.run = None
            log.warning(
                "wandb: %s. The run goes on without it; metrics.csv has the numbers. logger=csv "
                "turns wandb off.",
                str(error).strip().split("\n")[0] or type(error).__name__,
            )
