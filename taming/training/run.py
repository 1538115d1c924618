"""One training run: what it checks first, how it is fitted, and what it leaves."""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger

from taming.errors import MissingPathError, UserError
from taming.serialization import (
    load_training_checkpoint,
    read_training_checkpoint,
    save_model_directory,
)
from taming.training.callbacks import TrainingInterrupted
from taming.training.checkpoint_io import WholeFileCheckpointIO
from taming.training.module import TrainingModule

__all__ = ["TrainingResult", "check_resume", "train"]


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended; `result.json` holds the same.

    Attributes:
        step: finished steps.
        interrupted: whether the user ended it.
        exported_step: the step of the model in `model/`.
        metrics: the numbers of that model's validation, or of the latest one before it.
    """

    step: int
    interrupted: bool
    exported_step: int
    metrics: dict[str, float]


def check_resume(run_dir: Path, max_steps: int, kind: str) -> Path:
    """Returns the checkpoint to resume the run in `run_dir` from.

    Args:
        run_dir: directory of the run.
        max_steps: of the whole training, finished steps included.
        kind: of the model that is trained, `"vqgan"` or `"generator"`.

    Raises:
        MissingPathError: if there is no run or no checkpoint.
        UserError: if the checkpoint is damaged or another stage's, or the run has done `max_steps`.
    """
    path = run_dir / "checkpoints" / "last.ckpt"
    if not path.is_file():
        raise MissingPathError(
            f"nothing to resume: {path} does not exist. Give the directory of a run that has saved "
            "a checkpoint."
        )
    checkpoint = read_training_checkpoint(path)
    found = checkpoint["model"]["kind"]
    if found != kind:
        raise UserError(f"{path} holds a {found}, where a {kind} is needed: use the other command.")
    if "global_step" not in checkpoint or "random_state" not in checkpoint:
        raise UserError(f"{path} is of an older version of this program, which must finish it.")
    step = checkpoint["global_step"]
    if step >= max_steps:
        raise UserError(
            f"the run in {run_dir} has done {step} steps, and trainer.max_steps is {max_steps}; to "
            f"train on, give a larger number, such as trainer.max_steps={2 * step}."
        )
    return path


def train(
    module: TrainingModule,
    data: L.LightningDataModule,
    trainer: L.Trainer,
    *,
    run_dir: Path,
    export: Literal["best", "last"],
    resume_from: Path | None = None,
    on_start: Callable[[], object] = lambda: None,
) -> TrainingResult:
    """Trains, and writes `model/` and `result.json` into the run directory.

    Args:
        module: stage 1 or stage 2.
        data: what to train on.
        trainer: its callbacks write the checkpoints into `run_dir/checkpoints`.
        run_dir: the run's directory.
        export: which checkpoint becomes `model/`.
        resume_from: checkpoint of the same run to go on from.
        on_start: called in the first process when the first step is next, after all that a
            checkpoint holds has been restored.

    Raises:
        UserError: if a checkpoint is to be chosen by a number that validation does not report, or
            a checkpoint or the model cannot be written.
    """
    check_monitors(module, trainer)

    def begin(trainer: L.Trainer, _: L.LightningModule) -> None:
        # what a resumed run has written is outdated, and in its checkpoint
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            shutil.rmtree(run_dir / "model", ignore_errors=True)
            (run_dir / "result.json").unlink(missing_ok=True)
            on_start()

    trainer.callbacks.insert(0, LambdaCallback(on_train_start=begin))  # type: ignore[attr-defined]
    if trainer.strategy.root_device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32
    interrupted = False
    try:
        with warnings.catch_warnings():
            # Lightning's advice on data loaders does not fit endless ones
            warnings.filterwarnings("ignore", module=r"lightning\.pytorch\..*")
            trainer.fit(
                module,
                datamodule=data,
                ckpt_path=None if resume_from is None else str(resume_from),
                weights_only=True,
            )
    except TrainingInterrupted:
        interrupted = True
    finally:
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):  # the next job of a sweep has a run of its own
                logger.experiment.finish()
    best = best_checkpoint(trainer) if export == "best" else None
    # resolved as ModelCheckpoint does: a relative run directory must find its failures, too
    exported = best or (run_dir / "checkpoints" / "last.ckpt").resolve()
    checkpoints = trainer.strategy.checkpoint_io
    if isinstance(checkpoints, WholeFileCheckpointIO) and exported in checkpoints.failures:
        raise UserError(checkpoints.failures[exported])
    step = trainer.global_step
    result = TrainingResult(step, interrupted, step, module.val_metrics)
    if best is not None:
        checkpoint = read_training_checkpoint(best)
        result = TrainingResult(
            step, interrupted, checkpoint["global_step"], checkpoint["val_metrics"]
        )
    if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        _export(exported, module, run_dir, result)
    return result


def check_monitors(module: TrainingModule, trainer: L.Trainer) -> None:
    """Raises a `UserError` if a callback monitors a number that nobody reports, or its wrong end.

    Lightning would notice the first after hours, and the second never.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        monitor, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if not isinstance(monitor, str) or not monitor.startswith("val/"):
            continue
        name = type(callback).__name__
        if monitor not in module.val_modes:
            raise UserError(
                f"{name} monitors {monitor!r}, which validation does not report; it reports "
                f"{', '.join(module.val_modes)}."
            )
        if mode != module.val_modes[monitor]:
            raise UserError(
                f"{name} takes mode={mode} of {monitor}, of which the best is the "
                f"{module.val_modes[monitor]}: set callbacks.best.mode={module.val_modes[monitor]}."
            )


def best_checkpoint(trainer: L.Trainer) -> Path | None:
    """Returns the best checkpoint by the number that the run monitors, if there is one."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor is not None:
            path = Path(callback.best_model_path)
            return path if path.is_file() else None
    return None


def _export(checkpoint: Path, module: Any, run_dir: Path, result: TrainingResult) -> None:
    """Writes `model/`, and how the run ended into `result.json`."""
    try:
        if checkpoint.is_file():
            saved = load_training_checkpoint(checkpoint)
        else:  # the user's callbacks save none
            saved = module.saved_from(module.state_dict())
        save_model_directory(saved, run_dir / "model")
        (run_dir / "result.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"{run_dir / 'model'} could not be written ({error}). The checkpoint {checkpoint} "
            "holds the same model."
        ) from error
