"""What the two training commands share."""

import logging
from pathlib import Path
from typing import Annotated, Literal

import lightning as L
import torch
from annotated_types import Ge
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from taming.cli.app import build, build_all, is_first_process, program, write_config
from taming.cli.hints import setting
from taming.errors import UserError
from taming.training import MetricsFile, TrainingResult

__all__ = ["TRAINING_TYPES", "begin_run", "build_trainer", "check_run_dir", "finish"]


TRAINING_TYPES = {
    "trainer.precision": int | str,  # auto, too
    "trainer.gradient_clip_val": Annotated[float, Ge(0)] | None,
    "export": Literal["best", "last"],
}
DEVICES = ("accelerator", "devices", "strategy")


def build_trainer(config: DictConfig, *, parts_rest: bool = False) -> L.Trainer:
    """Builds Lightning's trainer with the run's callbacks.

    Args:
        config: of the command.
        parts_rest: whether parts of the module get no gradient in some steps, as a discriminator
            before its start, which plain DDP takes for an error.

    Raises:
        UserError: for what Lightning refuses, such as a GPU that is not there.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    settings = config.trainer.copy()
    if settings.precision == "auto":
        settings.precision = _precision(settings.accelerator)
    alone = str(settings.devices) == "1" and settings.num_nodes == 1
    if settings.strategy == "auto" and parts_rest and not alone:
        settings.strategy = "ddp_find_unused_parameters_true"
    if settings.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise UserError(
            f"trainer.accelerator={settings.accelerator}, but PyTorch sees no CUDA GPU here. Check "
            "nvidia-smi and that PyTorch is a CUDA build, or use trainer=cpu."
        )
    callbacks = build_all(config.callbacks)
    try:
        trainer = build(settings, callbacks=callbacks, logger=False)
    except InstantiationException as error:
        found = " ".join(
            f"trainer.{n}={settings[n]}" for n in ("accelerator", "devices", "strategy")
        )
        raise UserError(f"{found}: {' '.join(str(error.__cause__).split())}") from error
    if trainer.max_steps < 1:
        raise UserError(f"trainer.max_steps must be at least 1, not {trainer.max_steps}.")
    return trainer


def begin_run(config: DictConfig, trainer: L.Trainer, run_dir: Path) -> None:
    """Writes a new run's configuration, all checks being done, and starts its loggers.

    A resumed run's is written when its first step is next: settings that stop it are not to stay.
    A `fast_dev_run` writes nothing.
    """
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return
    if config.resume is None and is_first_process():
        write_config(config, run_dir)
    trainer.loggers = [MetricsFile(run_dir / "metrics.csv"), *build_all(config.logger)]


def _precision(accelerator: str) -> str:
    if accelerator == "cpu" or not torch.cuda.is_available():
        return "32-true"
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if native else "16-mixed"


def check_run_dir(config: DictConfig) -> Path:
    """Returns the run's directory.

    Raises:
        UserError: if it is a new run's and holds another run already.
    """
    run_dir = Path(config.run_dir).expanduser()
    begun = (run_dir / "checkpoints" / "last.ckpt").exists() or (run_dir / "model").exists()
    if config.resume is None and begun and is_first_process():
        raise UserError(
            f"{run_dir} holds a run already. Continue it with {setting('resume', str(run_dir))}, "
            "or give another run_dir."
        )
    return run_dir


def finish(
    config: DictConfig, result: TrainingResult, run_dir: Path, name: str, next_step: str
) -> float | None:
    """Says what was written and what comes next; returns the monitored number, for sweeps.

    Raises:
        KeyboardInterrupt: if the user ended the training.
    """
    if is_first_process() and not (run_dir / "result.json").exists():
        print("\nfast_dev_run: it runs, and has written nothing")
    elif is_first_process():
        numbers = ", ".join(
            f"{name.removeprefix('val/')} {value:.4g}" for name, value in result.metrics.items()
        )
        print(f"\n{run_dir}: {result.step} steps done")
        print(f"  model/         the model of step {result.exported_step}: {numbers}")
        written = ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "grids", "metrics.csv")
        print(f"  {', '.join(name for name in written if (run_dir / name).exists())}")
        if result.step < config.trainer.max_steps:
            why = "interrupted" if result.interrupted else "out of time"
            print(f"{why} before step {config.trainer.max_steps}; go on with:")
            print(f"  {program(name)} {setting('resume', str(run_dir))}")
        else:
            print(f"next: {next_step}")
    if result.interrupted:
        raise KeyboardInterrupt
    return result.metrics.get(OmegaConf.select(config, "callbacks.best.monitor"))
