"""What the two training commands share."""

from pathlib import Path

from omegaconf import DictConfig

from taming.cli.app import build, is_first_process, program, resolved
from taming.cli.hints import setting
from taming.errors import UserError
from taming.serialization import read_training_checkpoint
from taming.training import CSVTracker, Tracker, TrainingResult

__all__ = ["finish", "start_trackers"]


def start_trackers(config: DictConfig, run_dir: Path, resume_from: Path | None) -> list[Tracker]:
    """`metrics.csv`, and what `config.logger` adds to it; nothing in processes of other ranks.

    Raises:
        UserError: if `metrics.csv` cannot be written.
    """
    if not is_first_process():
        return []
    first_step = 0 if resume_from is None else read_training_checkpoint(resume_from)["step"]
    try:
        trackers: list[Tracker] = [CSVTracker(run_dir / "metrics.csv", first_step)]
    except OSError as error:
        raise UserError(f"{run_dir / 'metrics.csv'} cannot be written: {error}.") from error
    start_logger = build(config.logger)
    if start_logger is not None:
        trackers.append(start_logger(run_dir, resolved(config)))
    return trackers


def finish(
    result: TrainingResult,
    monitor: str,
    run_dir: Path,
    *,
    name: str,
    max_steps: int,
    next_step: str,
) -> float | None:
    """Says what was written and what comes next; returns a sweep's objective.

    Raises:
        KeyboardInterrupt: if the training was interrupted.
    """
    if is_first_process():
        _report(result, run_dir, name, max_steps, next_step)
    if result.interrupted:
        raise KeyboardInterrupt
    return result.metrics.get(monitor)


def _report(
    result: TrainingResult, run_dir: Path, name: str, max_steps: int, next_step: str
) -> None:
    numbers = ", ".join(
        f"{name.removeprefix('val/')} {value:.4g}" for name, value in result.metrics.items()
    )
    print(f"\n{run_dir}: {result.step} steps done")
    print(
        f"  model/         the model of step {result.exported_step}: {numbers or 'not validated'}"
    )
    written = (
        "checkpoints/last.ckpt",
        "checkpoints/best.ckpt",
        "grids",
        "metrics.csv",
        "config.yaml",
    )
    print(f"  {', '.join(name for name in written if (run_dir / name).exists())}")
    if result.step < max_steps:
        why = "interrupted" if result.interrupted else "out of time"
        go_on = f"{program(name)} {setting('resume', str(run_dir))}"
        print(f"{why} before step {max_steps}; go on with:\n  {go_on}")
    else:
        print(f"next: {next_step}")
