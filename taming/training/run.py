"""One training run: what it checks first, how it is fitted, and what it leaves."""

import json
import logging
import math
import shutil
import signal
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import lightning as L
from annotated_types import Ge, Lt
from lightning.pytorch.callbacks import LambdaCallback

from taming.runtime.errors import MissingPathError, UserError, replacing
from taming.runtime.hardware import device_name
from taming.runtime.process_group import on_first_rank
from taming.runtime.versions import versions
from taming.serialization import (
    DamagedCheckpointError,
    SavedModel,
    is_checkpoint,
    read_training_checkpoint,
    save_model_directory,
    saved_checkpoints,
)
from taming.training.callbacks import Clock, TrainingInterrupted
from taming.training.checkpoints import WholeFileCheckpointIO, set_aside
from taming.training.module import TrainingModule

__all__ = ["TrainingResult", "check_resume", "finished_steps", "train"]

log = logging.getLogger("taming")


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended; `result.json` holds the same.

    Attributes:
        step: finished steps.
        interrupted: whether the user ended it.
        exported_step: the step of the model in `model/`.
        metrics: the numbers of the latest validation up to that step.
        metrics_step: the step of that validation; None if there was none.
        duration_seconds: how long the run took, validations and resumed parts included.
        images_per_second: speed of the latest session's training, validations left out.
        device: the GPU or processor, and the number of processes if there are several.
        precision: that of the steps, in Lightning's words.
        versions: of the program and of what it builds on.
    """

    step: int
    interrupted: bool
    exported_step: int
    metrics: dict[str, float]
    metrics_step: int | None
    duration_seconds: Annotated[float, Ge(0), Lt(math.inf)]
    images_per_second: Annotated[float, Ge(0), Lt(math.inf)]
    device: str
    precision: str
    versions: dict[str, str]


def check_resume(run_dir: Path, kind: str) -> tuple[Path, SavedModel]:
    """Returns the checkpoint to resume the run in `run_dir` from, and the model in it.

    It is the newest that is whole; a warning names one that is not. `kind` is that of the model,
    `"vqgan"` or `"generator"`.

    Raises:
        MissingPathError: if there is no run or no checkpoint.
        UserError: if all are damaged, or it is unreadable, another stage's or an older version's.
    """
    damaged: list[DamagedCheckpointError] = []
    for path in saved_checkpoints(run_dir):
        try:
            checkpoint, saved = read_training_checkpoint(path, check=True)
        except DamagedCheckpointError as error:
            damaged.append(error)
            continue
        for why in damaged:
            log.warning("%s Going on from %s, step %d.", why, path, checkpoint["global_step"])
        return path, saved.require(kind)
    if damaged:
        raise damaged[0]
    raise MissingPathError(
        f"nothing to resume: {run_dir / 'checkpoints' / 'last.ckpt'} does not exist. Give the "
        "directory of a run that has saved a checkpoint."
    )


def finished_steps(run_dir: Path) -> int:
    """Returns the steps of the run that ended in `run_dir` with all it leaves; 0 without one."""
    try:
        return int(json.loads((run_dir / "result.json").read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def train(
    module: TrainingModule,
    data: L.LightningDataModule,
    trainer: L.Trainer,
    *,
    run_dir: Path,
    export: Literal["best", "last"],
    resume_from: Path | None = None,
) -> TrainingResult:
    """Trains, and writes `model/` and `result.json` into the run directory.

    The trainer's callbacks have a `Clock`, and write the checkpoints into `run_dir/checkpoints`:
    `export` says which becomes `model/`, and `resume_from` is the one to go on from.

    Raises:
        UserError: if a checkpoint is to be chosen by a number that validation does not report, or
            a checkpoint or the model cannot be written.
        SystemExit: 128 + its number, if a signal other than Ctrl-C's ended it: whoever sends those
            leaves little time for more than the checkpoint.
    """
    check_monitors(module, trainer)
    writes = trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]
    resume_from = on_first_rank(lambda: resume_from)  # each has chosen one
    saved = saved_checkpoints(run_dir)
    if writes and resume_from in saved:  # what is newer is damaged, and the next must not keep it
        for path in saved[: saved.index(resume_from)]:
            set_aside(path)
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    clock = next(c for c in callbacks if isinstance(c, Clock))
    if writes:  # what a resumed run has written is outdated, and in its checkpoint
        callbacks.insert(0, LambdaCallback(on_train_start=lambda *_: _remove_export(run_dir)))
    ended_by = _fit(module, data, trainer, resume_from)
    if ended_by is not None and ended_by != signal.SIGINT:
        log.info("%s: ended at step %d; resume=%s", ended_by.name, trainer.global_step, run_dir)
        handler = signal.getsignal(ended_by)
        if callable(handler):  # of what has started this: submitit's queues the job again
            handler(ended_by, None)
        raise SystemExit(128 + ended_by)
    interrupted = ended_by is not None
    return on_first_rank(
        lambda: _export(module, trainer, clock, run_dir, export, resume_from, interrupted)
    )


def _fit(
    module: TrainingModule,
    data: L.LightningDataModule,
    trainer: L.Trainer,
    resume_from: Path | None,
) -> signal.Signals | None:
    """Trains until all checkpoints are written; returns the signal that ended it, if one did."""
    ended_by = None
    with warnings.catch_warnings():
        # Lightning's advice on data loaders does not fit endless ones
        warnings.filterwarnings("ignore", module=r"lightning\.pytorch\..*")
        # where a sharded checkpoint is saved, PyTorch warns of functions of its own
        warnings.filterwarnings("ignore", module=r"torch\.distributed\..*")
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
        except TrainingInterrupted as end:
            ended_by = end.signal
        finally:  # Lightning leaves this out with FSDP, and where saving on an exception fails
            trainer.strategy.checkpoint_io.teardown()
    return ended_by


def _export(
    module: TrainingModule,
    trainer: L.Trainer,
    clock: Clock,
    run_dir: Path,
    export: Literal["best", "last"],
    resume_from: Path | None,
    interrupted: bool,
) -> TrainingResult:
    """Writes `model/`, and how the run ended into `result.json`; nothing in a `fast_dev_run`.

    Raises:
        UserError: if the chosen checkpoint could not be written or is damaged, or `model/` cannot
            be written.
    """
    seconds = clock.time_elapsed()
    best = next((c for c in trainer.checkpoint_callbacks if getattr(c, "monitor", None)), None)
    path = Path(getattr(best, "best_model_path", ""))
    if export == "last" or not is_checkpoint(path):
        path = (run_dir / "checkpoints" / "last.ckpt").resolve()  # as ModelCheckpoint does
    files = trainer.strategy.checkpoint_io
    if isinstance(files, WholeFileCheckpointIO) and path in files.failures:
        raise UserError(files.failures[path])
    if not is_checkpoint(path) and resume_from is not None:  # no step was left to save
        path = resume_from
    step, metrics, metrics_step = trainer.global_step, module.val_metrics, module.val_step
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        saved = None
    elif is_checkpoint(path):
        checkpoint, saved = read_training_checkpoint(path, check=True)
        step, metrics = checkpoint["global_step"], checkpoint["val_metrics"]
        metrics_step = checkpoint.get("val_step")  # unknown in older ones
    else:  # the user's callbacks save none
        saved = module.to_saved(module.state_dict())
    result = TrainingResult(
        step=trainer.global_step,
        interrupted=interrupted,
        exported_step=step,
        metrics=metrics,
        metrics_step=metrics_step,
        duration_seconds=round(seconds, 1),
        images_per_second=round(clock.images_per_second, 2),
        device=described_device(trainer),
        precision=str(trainer.precision),
        versions=versions(),
    )
    if saved is None:
        return result
    _remove_export(run_dir)  # where no step was left, what a killed one has written
    try:
        save_model_directory(saved, run_dir / "model")
        with replacing(run_dir / "result.json") as file:  # it says that all is written
            file.write(json.dumps(asdict(result), indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"{run_dir / 'model'} could not be written ({error}). The checkpoint {path} holds the "
            "same model."
        ) from error
    return result


def described_device(trainer: L.Trainer) -> str:
    """Returns the name of the device, and the number of processes if there are several."""
    name = device_name(trainer.strategy.root_device)
    return name if trainer.world_size == 1 else f"{name}, {trainer.world_size} processes"


def check_monitors(module: TrainingModule, trainer: L.Trainer) -> None:
    """Raises a `UserError` if a callback monitors an unknown metric, or one in the wrong mode.

    Lightning would notice the first after hours, and the second never.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        monitor, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if not str(monitor).startswith("val/"):
            continue
        name, best = type(callback).__name__, module.val_modes.get(str(monitor))
        if best is None:
            raise UserError(
                f"{name} monitors {monitor!r}, which validation does not report; it reports "
                f"{', '.join(module.val_modes)}."
            )
        if mode != best:
            raise UserError(
                f"{name} takes mode={mode} of {monitor}, of which the best is the {best}: set "
                f"callbacks.best.mode={best}."
            )


def _remove_export(run_dir: Path) -> None:
    for path in (run_dir / "model", *run_dir.glob("model.unfinished*")):
        shutil.rmtree(path, ignore_errors=True)
    (run_dir / "result.json").unlink(missing_ok=True)
