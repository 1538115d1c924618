"""What the two training commands share: how a run starts, and what it prints at its end."""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import lightning as L
import torch
from annotated_types import Ge
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.callbacks import LambdaCallback, ProgressBar
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from taming.cli.build import build, build_all
from taming.cli.command import at_end_of_job, locked
from taming.cli.next_command import print_next, program, setting
from taming.cli.saved_config import resume_config, resume_same_command, write_config
from taming.cli.setting_types import check_types
from taming.data.module import EndlessDataModule
from taming.runtime.errors import UserError
from taming.runtime.process_group import on_first_rank
from taming.serialization import SavedModel, saved_checkpoints
from taming.training import (
    MetricsFile,
    TrainingModule,
    TrainingResult,
    check_links,
    check_resume,
    finished_steps,
    train,
)
from taming.training.execution import (
    Precision,
    choose_execution,
    default_precision,
    supported_precision,
)
from taming.training.memory import advising_less_memory, check_room
from taming.training.processes import (
    choose_strategy,
    connect_processes,
    environment_plugins,
    log_global_batch,
)
from taming.training.tracking import finish_wandb, log_lineage

__all__ = ["Run", "build_trainer", "finish_run", "log_notes", "start_run"]

log = logging.getLogger("taming")

TYPES = {
    "trainer.max_steps": Annotated[int, Ge(1)],
    "trainer.precision": Precision,
    "trainer.gradient_clip_val": Annotated[float, Ge(0)] | None,
    "float32_matmul_precision": Literal["highest", "high", "medium"],
    "export": Literal["best", "last"],
    "keep_checkpoints": Annotated[int, Ge(1)],
}


@dataclass
class Run:
    """A training run before its first step.

    Attributes:
        config: the configuration of the command, or of the run that it resumes.
        trainer: Lightning's trainer, with the run's callbacks.
        resume_from: the checkpoint to resume from.
        saved_model: the model in that checkpoint. It maps the checkpoint's file, which therefore
            occupies the disk until the model is released.
    """

    config: DictConfig
    trainer: L.Trainer
    resume_from: Path | None
    saved_model: SavedModel | None


def start_run(config: DictConfig, kind: str, types: Mapping[str, Any]) -> Run | None:
    """Checks the settings of a run before any of its files are written, and locks its directory.

    Args:
        config: the command's configuration.
        kind: the kind of model, `"vqgan"` or `"generator"`.
        types: annotations of settings that no target has.

    Returns:
        The run, or None if `resume=auto` finds a finished one.

    Raises:
        UserError: if the directory already holds another run or leads out of itself, another
            process is training in it, or the run to resume is finished.
    """
    resume_from: Path | None = None
    saved_model: SavedModel | None = None
    resume = config.resume
    check_links(Path(config.run_dir))  # of the run to resume, if there is one
    if resume not in ("auto", None):
        resume_from, saved_model = check_resume(Path(resume).expanduser(), kind)
        config = resume_config(config)
    check_types(config, {**types, **TYPES})
    run_dir, max_steps = Path(config.run_dir), config.trainer.max_steps
    num_steps = finished_steps(run_dir)
    if resume == "auto" and num_steps >= max_steps:
        log.info("%s: finished, %d steps; there is nothing to do", run_dir, num_steps)
        return None
    if resume is not None and num_steps >= max_steps:
        raise UserError(
            f"the run in {run_dir} has completed {num_steps} steps, and trainer.max_steps is "
            f"{max_steps}. To continue it, give a larger number, such as "
            f"trainer.max_steps={2 * num_steps}."
        )
    checkpoints = saved_checkpoints(run_dir)
    if resume == "auto":
        config.resume = None
        if checkpoints:
            resume_from, saved_model = check_resume(run_dir, kind)
            config = resume_same_command(config)
    trainer = build_trainer(config)

    def lock() -> None:
        if trainer.global_rank == 0:  # the others may not be connected yet
            at_end_of_job.enter_context(locked(run_dir))

    on_first_rank(lock)
    is_occupied = on_first_rank(lambda: bool(checkpoints) or (run_dir / "model").exists())
    if is_occupied and resume_from is None:
        raise UserError(
            f"{run_dir} already holds a run. Continue it with {setting('resume', str(run_dir))}, "
            "or give another run_dir."
        )
    return Run(config, trainer, resume_from, saved_model)


def build_trainer(config: DictConfig) -> L.Trainer:
    """Builds Lightning's trainer with the run's callbacks, and connects its processes."""
    for name in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    settings = config.trainer.copy()
    if settings.accelerator == "auto" and torch.backends.mps.is_available():
        settings.accelerator = "cpu"  # MPS has no float64, which validation needs
        warnings.filterwarnings("ignore", "GPU available but not used")
    on_gpu = settings.accelerator != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    precision = settings.precision
    settings.precision = (
        default_precision(device) if precision == "auto" else supported_precision(precision, device)
    )
    clock = {"_target_": "taming.training.Clock", "duration": settings.max_time}
    plugins = [build(plugin) for plugin in settings.get("plugins") or []]
    discriminator = OmegaConf.select(config, "adversary._target_") is not None
    callbacks = [*build_all(config.callbacks), build(OmegaConf.create(clock))]
    if settings.get("enable_progress_bar") is False:  # Lightning refuses a callback that shows it
        callbacks = [callback for callback in callbacks if not isinstance(callback, ProgressBar)]
    strategy = choose_strategy(settings, discriminator)
    if isinstance(strategy, DictConfig) and "_target_" in strategy:
        strategy = build(strategy)
    if isinstance(strategy, FSDPStrategy) and settings.precision == "64-true":
        raise UserError(
            "trainer.precision=64-true cannot train with FSDP. Use trainer.precision=32-true, or "
            "trainer=ddp."
        )
    trainer: L.Trainer = build(
        settings,
        callbacks=callbacks,
        default_root_dir=settings.get("default_root_dir") or config.run_dir,
        logger=False,
        strategy=strategy,
        plugins=[*plugins, *environment_plugins(plugins)],
    )
    # Lightning takes SLURM's number at first, which a process that trains alone has too
    rank_zero_only.rank = trainer.global_rank  # type: ignore[attr-defined]
    connect_processes(trainer)
    return trainer


@rank_zero_only
def log_notes(notes: list[str]) -> None:
    """Logs what is unusual about the settings or the data."""
    for note in notes:
        log.warning("note: %s", note)


def settle_execution(
    config: DictConfig, module: TrainingModule, data: EndlessDataModule, trainer: L.Trainer
) -> None:
    """Chooses how the steps are computed, for the module, the trainer and the configuration."""
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.set_float32_matmul_precision(config.float32_matmul_precision)
    execution = choose_execution(
        "auto" if config.trainer.precision == "auto" else str(trainer.precision),
        module,
        data.first_batch,
        device,
        num_batches=trainer.max_steps * trainer.accumulate_grad_batches,
        num_processes=trainer.world_size,
    )
    if execution.precision != trainer.precision:  # bf16-mixed was timed faster on this CPU
        trainer.strategy.precision_plugin = MixedPrecision("bf16-mixed", device.type)
    config.trainer.precision = execution.precision
    for name in {"channels_last", "compile"} & config.training.keys():
        config.training[name] = getattr(execution, name)


def finish_run(
    run: Run,
    module: TrainingModule,
    data: EndlessDataModule,
    *,
    images: L.LightningDataModule,
    next_step: str,
) -> float | None:
    """Trains, prints what was written and the next command, and returns the monitored number.

    A new run writes its configuration before the training. A resumed run replaces it just before
    its first step, so that settings that stop it are not kept. A
    `fast_dev_run` writes nothing.

    Args:
        run: what `start_run` returned.
        module: the Lightning module to train.
        data: what the module is trained on.
        images: the images that the report shows. In stage 1 they are `data`.
        next_step: the command that comes next.

    Raises:
        KeyboardInterrupt: if the user has stopped the training.
    """
    config, trainer, run_dir = run.config, run.trainer, Path(run.config.run_dir)
    fast_dev_run = trainer.fast_dev_run  # type: ignore[attr-defined]
    check_room(module, trainer, run_dir, config.keep_checkpoints)
    with advising_less_memory(module, trainer, run_dir, data.batch_size):
        settle_execution(config, module, data, trainer)
        log_global_batch(trainer, data.batch_size, config.training.optimizer.learning_rate)
        if not fast_dev_run:
            write = rank_zero_only(partial(write_config, config))
            if run.resume_from is None:
                write()
            trainer.callbacks.append(LambdaCallback(on_train_start=lambda *_: write()))  # type: ignore[attr-defined]
            trainer.loggers = [MetricsFile(run_dir / "metrics.csv"), *build_all(config.logger)]
        try:
            result = train(
                module,
                data,
                trainer,
                run_dir=run_dir,
                export=config.export,
                resume_from=run.resume_from,
            )
            if trainer.is_global_zero:
                training_images = getattr(images, "train_dataset", None)
                log_lineage(trainer.loggers, run_dir, training_images, data.train_dataset)
        finally:
            finish_wandb(trainer.loggers)  # the next job of a sweep has its own run
    if fast_dev_run and trainer.is_global_zero:
        print("\nfast_dev_run: the training works, and nothing was written")
    elif trainer.is_global_zero:
        if config.get("report", True):
            _write_report(run_dir, images, trainer.strategy.root_device)
        _print_end(config, result, run_dir, next_step)
    if result.interrupted:
        raise KeyboardInterrupt
    return result.metrics.get(OmegaConf.select(config, "callbacks.best.monitor"))


def _write_report(run_dir: Path, images: Any, device: torch.device) -> None:
    """Writes report.html. An error there is only logged, because the model is already exported."""
    log.info("writing the report")
    try:
        from taming.report.write import write_report

        write_report([run_dir], run_dir / "report.html", open_data=lambda _: images, device=device)
    except Exception as error:
        log.warning(
            "%s was not written (%s: %s), but everything else was. To write it: %s runs=%s",
            run_dir / "report.html",
            type(error).__name__,
            error,
            program("report"),
            run_dir,
        )


def _print_end(config: DictConfig, result: TrainingResult, run_dir: Path, next_step: str) -> None:
    """Prints what the run directory holds, and the command that comes next."""
    metrics = result.metrics.items()
    numbers = ", ".join(f"{name.removeprefix('val/')} {value:.4g}" for name, value in metrics)
    print(f"\n{run_dir}: {result.step} steps done")
    step = str(result.exported_step)
    if numbers and result.metrics_step != result.exported_step:
        step = f"{step}; validated at step {result.metrics_step or 'unknown'}"
    print(f"  model/         the model of step {step}{f': {numbers}' if numbers else ''}")
    files = ("report.html", "checkpoints/last.ckpt", "checkpoints/best.ckpt", "grids",
             "metrics.csv")  # fmt: skip
    print(f"  {', '.join(name for name in files if (run_dir / name).exists())}")
    if result.step < config.trainer.max_steps:
        reason = "interrupted" if result.interrupted else "out of time"
        print(f"{reason} before step {config.trainer.max_steps}; resume it with:")
        print(f"  {program(HydraConfig.get().job.name)} {setting('resume', str(run_dir))}")
    else:
        print_next(f"next: {next_step}")
