"""One training run: its checks, the fit, and the model and result that it writes."""

import json
import logging
import math
import os
import shutil
import signal
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import lightning as L
from annotated_types import Ge, Lt

from taming.runtime.errors import MissingPathError, UserError, escapes, replacing
from taming.runtime.hardware import device_name
from taming.runtime.process_group import on_first_rank
from taming.runtime.versions import versions
from taming.serialization import (
    DamagedCheckpointError,
    SavedModel,
    is_checkpoint,
    is_only_a_model,
    read_training_checkpoint,
    replace_model,
    saved_checkpoints,
)
from taming.training.checkpoints import WholeFileCheckpointIO, remove
from taming.training.module import TrainingModule
from taming.training.stopping import Clock, TrainingInterrupted

__all__ = ["TrainingResult", "check_links", "check_resume", "finished_steps", "train"]

log = logging.getLogger("taming")


FiniteNumber = Annotated[float, Ge(0), Lt(math.inf)]


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of a run, as in `result.json`."""

    step: int  # completed steps
    interrupted: bool  # by the user
    exported_step: int  # of the model in `model/`
    metrics: dict[str, float]  # of the latest validation up to that step
    metrics_step: int | None  # of that validation; None if there was none
    duration_seconds: FiniteNumber  # with validations, over all sessions
    images_per_second: FiniteNumber  # in the latest session, without validations
    device: str  # GPU or processor, and the number of processes if there are several
    precision: str  # as in Lightning
    versions: dict[str, str]


def check_resume(run_dir: Path, kind: str) -> tuple[Path, SavedModel]:
    """Returns the newest undamaged checkpoint of a run, and the model of that kind in it.

    Raises:
        MissingPathError: if there is no run or no checkpoint.
        UserError: if all checkpoints are damaged, or the newest is unreadable or of another stage.
    """
    damage: list[DamagedCheckpointError] = []
    for path in saved_checkpoints(run_dir):
        try:
            checkpoint, saved = read_training_checkpoint(path, check=True)
        except DamagedCheckpointError as error:
            damage.append(error)
            continue
        for damaged in damage:
            log.warning("%s Resuming from %s, step %d.", damaged, path, checkpoint["global_step"])
        return path, saved.require(kind)
    if damage:
        raise damage[0]
    raise MissingPathError(
        f"nothing to resume: {run_dir / 'checkpoints' / 'last.ckpt'} does not exist. Give the "
        "directory of a run that has saved a checkpoint."
    )


def check_links(run_dir: Path) -> None:
    """Checks that a run directory contains no symbolic link that leads out of it.

    The files of a run may be from anyone, and the training would write through such a link. The run
    directory itself may be a link. Weights & Biases makes links in `wandb/` and does not write
    through them.

    Raises:
        UserError: if there is one.
    """
    for folder, folders, files in os.walk(run_dir):
        for path in (Path(folder, name) for name in folders + files):
            if path.is_symlink() and escapes(path, run_dir):
                raise UserError(
                    f"{path} is a link to {os.path.realpath(path)}, which is outside the run "
                    "directory. To keep a run on another disk, move the whole directory there and "
                    f"make {run_dir} the link."
                )
        if Path(folder) == run_dir and "wandb" in folders:
            folders.remove("wandb")


def finished_steps(run_dir: Path) -> int:
    """Returns the step in `result.json`; 0 if the run has no result."""
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

    A resumed run keeps its earlier `model/` and `result.json` until it replaces them at its end.
    The trainer needs a `Clock`, and its callbacks write into `run_dir/checkpoints`. The checkpoint
    `export` becomes `model/`.

    Raises:
        UserError: if a callback monitors an unknown metric, or a checkpoint or the model cannot be
            written.
        SystemExit: with status 128 + its number, if a signal other than SIGINT ended the training.
            Schedulers leave little time after such a signal, so only the checkpoint is saved.
    """
    check_monitors(module, trainer)
    resume_from = on_first_rank(lambda: resume_from)  # the ranks may have chosen differently
    if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        _set_newer_checkpoints_aside(run_dir, resume_from)
    # Lightning restores a checkpoint before it converts the weights, which would round them
    trainer.precision_plugin.convert_module(module)
    interruption = None
    with warnings.catch_warnings():
        # Lightning's advice on data loaders does not apply to endless ones
        warnings.filterwarnings("ignore", module=r"lightning\.pytorch\..*")
        # PyTorch warns of functions that it calls itself to save sharded checkpoints
        warnings.filterwarnings("ignore", module=r"torch\.distributed\..*")
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
        except TrainingInterrupted as exception:
            interruption = exception.signal
        finally:  # Lightning omits this with FSDP, and if saving on an exception fails
            trainer.strategy.checkpoint_io.teardown()
    if interruption is not None and interruption != signal.SIGINT:
        log.info(
            "%s: stopped at step %d; resume=%s", interruption.name, trainer.global_step, run_dir
        )
        handler = signal.getsignal(interruption)
        if callable(handler):  # submitit's handler queues the job again
            handler(interruption, None)
        raise SystemExit(128 + interruption)
    return on_first_rank(
        lambda: _export(
            module, trainer, run_dir, export, resume_from, interrupted=interruption is not None
        )
    )


def _set_newer_checkpoints_aside(run_dir: Path, resume_from: Path | None) -> None:
    """Renames checkpoints newer than `resume_from`, which are damaged, to `*.damaged`."""
    paths = saved_checkpoints(run_dir)
    if resume_from in paths:
        for path in paths[: paths.index(resume_from)]:
            aside = path.with_name(f"{path.name}.damaged")
            remove(aside)
            path.rename(aside)


def _export(
    module: TrainingModule,
    trainer: L.Trainer,
    run_dir: Path,
    export: Literal["best", "last"],
    resume_from: Path | None,
    *,
    interrupted: bool,
) -> TrainingResult:
    """Writes `model/` and then `result.json`; a `fast_dev_run` writes neither."""
    path = _exported_checkpoint(trainer, run_dir, export, resume_from)
    step, metrics, metrics_step = trainer.global_step, module.val_metrics, module.val_step
    saved = None
    if not trainer.fast_dev_run:  # type: ignore[attr-defined]
        if is_checkpoint(path):
            checkpoint, saved = read_training_checkpoint(path, check=True)
            step, metrics = checkpoint["global_step"], checkpoint["val_metrics"]
            metrics_step = checkpoint["val_step"]
        else:  # the user's callbacks save none
            saved = module.to_saved(module.state_dict())
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    clock = next(callback for callback in callbacks if isinstance(callback, Clock))
    device = device_name(trainer.strategy.root_device)
    result = TrainingResult(
        step=trainer.global_step,
        interrupted=interrupted,
        exported_step=step,
        metrics=metrics,
        metrics_step=metrics_step,
        duration_seconds=round(clock.time_elapsed(), 1),
        images_per_second=round(clock.images_per_second, 2),
        device=device if trainer.world_size == 1 else f"{device}, {trainer.world_size} processes",
        precision=str(trainer.precision),
        versions=versions(),
    )
    if saved is None:
        return result
    try:
        for unfinished in run_dir.glob("model.unfinished*"):  # of a killed process
            if unfinished.is_dir() and is_only_a_model(unfinished):
                shutil.rmtree(unfinished)
        replace_model(saved, run_dir / "model")
        with replacing(run_dir / "result.json") as file:  # last, because it says that all is there
            file.write(json.dumps(asdict(result), indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"{run_dir / 'model'} could not be written ({error}). The checkpoint {path} holds the "
            "same model."
        ) from error
    return result


def _exported_checkpoint(
    trainer: L.Trainer, run_dir: Path, export: Literal["best", "last"], resume_from: Path | None
) -> Path:
    """Returns the checkpoint that becomes the model; raises if writing it has failed."""
    best = next((c for c in trainer.checkpoint_callbacks if getattr(c, "monitor", None)), None)
    path = Path(getattr(best, "best_model_path", ""))
    if export == "last" or not is_checkpoint(path):
        path = (run_dir / "checkpoints" / "last.ckpt").resolve()  # as ModelCheckpoint does
    files = trainer.strategy.checkpoint_io
    if isinstance(files, WholeFileCheckpointIO) and path in files.failures:
        raise UserError(files.failures[path])
    if not is_checkpoint(path) and resume_from is not None:  # there was no step to save
        return resume_from
    return path


def check_monitors(module: TrainingModule, trainer: L.Trainer) -> None:
    """Raises a `UserError` if a callback monitors an unknown metric, or one in the wrong mode.

    Lightning would notice the first after hours, and the second never.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        monitor, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if not str(monitor).startswith("val/"):
            continue
        name, best_mode = type(callback).__name__, module.val_modes.get(str(monitor))
        if best_mode is None:
            raise UserError(
                f"{name} monitors {monitor!r}, which validation does not report. It reports "
                f"{', '.join(module.val_modes)}."
            )
        if mode != best_mode:
            raise UserError(
                f"{name} uses mode={mode} for {monitor}, whose best value is the {best_mode}. Set "
                f"callbacks.best.mode={best_mode}."
            )
