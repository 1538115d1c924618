"""Shared by the two training commands: how a run begins, and its report at the end."""

import logging
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import lightning as L
import torch
from annotated_types import Ge
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from taming.cli.app import (
    build,
    build_all,
    program,
    resume_config,
    take_up_config,
    write_config,
)
from taming.cli.hints import setting
from taming.cli.processes import choose_strategy, connect_processes, log_global_batch
from taming.cli.resources import advising_less_memory, check_room
from taming.cli.setting_types import check_types
from taming.data.module import EndlessDataModule
from taming.runtime.errors import UserError
from taming.runtime.process_group import on_first_rank
from taming.serialization import SavedModel, saved_checkpoints
from taming.training import (
    MetricsFile,
    TrainingModule,
    TrainingResult,
    check_resume,
    finished_steps,
    train,
)
from taming.training.execution import choose_execution, default_precision
from taming.training.tracking import finish_wandb, log_lineage

__all__ = ["begin_run", "finish_run"]

log = logging.getLogger("taming")

TYPES = {
    "trainer.max_steps": Annotated[int, Ge(1)],
    "trainer.precision": int | str,  # auto, too
    "trainer.gradient_clip_val": Annotated[float, Ge(0)] | None,
    "float32_matmul_precision": Literal["highest", "high", "medium"],
    "export": Literal["best", "last"],
    "keep_checkpoints": Annotated[int, Ge(1)],
}


def begin_run(
    config: DictConfig, kind: str, types: Mapping[str, Any]
) -> tuple[DictConfig, L.Trainer, Path | None, SavedModel | None] | None:
    """Checks the settings of a run, before anything of it is read or written.

    `kind` is that of the model, and `types` are annotations of settings that no target has.

    Returns:
        The configuration, which is the run's own if it is resumed; Lightning's trainer; and the
        checkpoint to resume from, with the model in it. None if `resume=auto` finds a finished run.

    Raises:
        UserError: if the run's directory holds another run already, or the run to resume has done
            all its steps and left its result.
    """
    resume_from: Path | None = None
    saved: SavedModel | None = None
    resume = config.resume
    if resume not in ("auto", None):
        resume_from, saved = check_resume(Path(resume).expanduser(), kind)
        config = resume_config(config)
    check_types(config, {**types, **TYPES})
    run_dir, max_steps = Path(config.run_dir), config.trainer.max_steps
    done = finished_steps(run_dir)
    if resume == "auto" and done >= max_steps:
        log.info("%s: finished, %d steps; there is nothing to do", run_dir, done)
        return None
    if resume is not None and done >= max_steps:
        raise UserError(
            f"the run in {run_dir} has done {done} steps, and trainer.max_steps is {max_steps}; to "
            f"train on, give a larger number, such as trainer.max_steps={2 * done}."
        )
    left = saved_checkpoints(run_dir)
    if resume == "auto":
        config.resume = None
        if left:
            resume_from, saved = check_resume(run_dir, kind)
            config = take_up_config(config)
    trainer = _trainer(config)
    begun = on_first_rank(lambda: bool(left) or (run_dir / "model").exists())
    if begun and resume_from is None:
        raise UserError(
            f"{run_dir} holds a run already. Continue it with {setting('resume', str(run_dir))}, "
            "or give another run_dir."
        )
    return config, trainer, resume_from, saved


def _trainer(config: DictConfig) -> L.Trainer:
    """Builds Lightning's trainer with the run's callbacks."""
    for name in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    settings = config.trainer.copy()
    if settings.accelerator == "auto" and torch.backends.mps.is_available():
        settings.accelerator = "cpu"  # MPS has no float64, which validation needs
        warnings.filterwarnings("ignore", "GPU available but not used")
    if settings.precision == "auto":
        on_gpu = settings.accelerator != "cpu" and torch.cuda.is_available()
        settings.precision = default_precision(torch.device("cuda" if on_gpu else "cpu"))
    callbacks = build_all(config.callbacks)
    clock = {"_target_": "taming.training.Clock", "duration": settings.max_time}
    callbacks.append(build(OmegaConf.create(clock)))
    strategy = choose_strategy(config)
    trainer: L.Trainer = build(settings, callbacks=callbacks, logger=False, strategy=strategy)
    connect_processes(trainer)
    return trainer


def settle_execution(
    config: DictConfig, module: TrainingModule, data: EndlessDataModule, trainer: L.Trainer
) -> L.Trainer:
    """Chooses how the steps are computed, and puts it into module and configuration.

    Returns:
        The trainer: another one if it was built for another precision.
    """
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.set_float32_matmul_precision(config.float32_matmul_precision)
    precision = "auto" if config.trainer.precision == "auto" else str(trainer.precision)
    chosen = choose_execution(
        precision,
        module,
        data.first_batch,
        device,
        num_batches=trainer.max_steps * trainer.accumulate_grad_batches,
        num_processes=trainer.world_size,
    )
    config.trainer.precision = chosen.precision
    for name in {"channels_last", "compile"} & config.training.keys():
        config.training[name] = getattr(chosen, name)
    return trainer if trainer.precision == chosen.precision else _trainer(config)


def finish_run(
    config: DictConfig,
    module: TrainingModule,
    data: EndlessDataModule,
    trainer: L.Trainer,
    *,
    images: L.LightningDataModule,
    resume_from: Path | None,
    next_step: str,
) -> float | None:
    """Trains, says what was written and what comes next; returns the monitored number, for sweeps.

    `images` are those that the report shows; in stage 1 they are the data.

    A new run's configuration is written at once. A resumed run's is replaced when its first step is
    next, so that settings which stop it do not stay. A `fast_dev_run` writes nothing.

    Raises:
        KeyboardInterrupt: if the user ended the training.
    """
    run_dir = Path(config.run_dir)
    check_room(config, module, trainer)
    with advising_less_memory(config):
        trainer = settle_execution(config, module, data, trainer)
        log_global_batch(trainer, data.batch_size, config.training.optimizer.learning_rate)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            write = rank_zero_only(partial(write_config, config))
            if resume_from is None:
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
                resume_from=resume_from,
            )
            if trainer.is_global_zero:
                training_images = getattr(images, "train_dataset", None)
                log_lineage(trainer.loggers, run_dir, training_images, data.train_dataset)
        finally:
            finish_wandb(trainer.loggers)  # the next job of a sweep has a run of its own
    if trainer.is_global_zero:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            print("\nfast_dev_run: it runs, and has written nothing")
        else:
            if config.get("report", True):
                _write_report(run_dir, images, trainer.strategy.root_device)
            _print_end(config, result, run_dir, next_step)
    if result.interrupted:
        raise KeyboardInterrupt
    return result.metrics.get(OmegaConf.select(config, "callbacks.best.monitor"))


def _write_report(run_dir: Path, images: Any, device: torch.device) -> None:
    """Writes report.html. Whatever goes wrong there, the training has its model and goes on."""
    log.info("writing the report")
    try:
        from taming.report.write import write_report

        write_report([run_dir], run_dir / "report.html", open_data=lambda _: images, device=device)
    except Exception as error:
        log.warning(
            "%s was not written (%s: %s); all else was. Write it later: %s runs=%s",
            run_dir / "report.html",
            type(error).__name__,
            error,
            program("report"),
            run_dir,
        )


def _print_end(config: DictConfig, result: TrainingResult, run_dir: Path, next_step: str) -> None:
    found = result.metrics.items()
    numbers = ", ".join(f"{name.removeprefix('val/')} {value:.4g}" for name, value in found)
    print(f"\n{run_dir}: {result.step} steps done")
    step = str(result.exported_step)
    if numbers and result.metrics_step != result.exported_step:
        step = f"{step}; validated at step {result.metrics_step or 'unknown'}"
    print(f"  model/         the model of step {step}{f': {numbers}' if numbers else ''}")
    written = ("report.html", "checkpoints/last.ckpt", "checkpoints/best.ckpt", "grids",
               "metrics.csv")  # fmt: skip
    print(f"  {', '.join(name for name in written if (run_dir / name).exists())}")
    if result.step < config.trainer.max_steps:
        why = "interrupted" if result.interrupted else "out of time"
        print(f"{why} before step {config.trainer.max_steps}; go on with:")
        print(f"  {program(HydraConfig.get().job.name)} {setting('resume', str(run_dir))}")
    else:
        print(f"next: {next_step}")
