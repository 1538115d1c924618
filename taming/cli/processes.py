"""The processes of a training: those it starts, and those that `torchrun` or SLURM has started."""

import logging
import os

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from omegaconf import DictConfig, OmegaConf

from taming.cli.app import quiet_others
from taming.training import data_parallel

__all__ = ["choose_strategy", "connect_processes", "log_global_batch", "start_processes"]

log = logging.getLogger("taming")


def choose_strategy(config: DictConfig) -> DictConfig | str | DDPStrategy:
    """Returns the strategy of a training: what is set, else the stage's own for several devices."""
    settings = config.trainer
    # Lightning takes all GPUs with devices=auto
    one_device = str(settings.devices) == "1" or (
        settings.devices == "auto" and torch.cuda.device_count() <= 1
    )
    if settings.strategy != "auto" or (one_device and settings.num_nodes == 1):
        return settings.strategy
    discriminator = OmegaConf.select(config, "adversary._target_") is not None
    return data_parallel(discriminator, accumulates=settings.accumulate_grad_batches > 1)


def connect_processes(trainer: L.Trainer) -> None:
    """Connects a training's processes, if `torchrun`, SLURM or the like has started them."""
    # that of the strategy, which has none on a single device
    environment = trainer._accelerator_connector.cluster_environment
    if isinstance(environment, SLURMEnvironment):
        environment.auto_requeue = False  # Lightning saves in the midst of a step: see `train`
    if not isinstance(environment, LightningEnvironment):
        start_processes(trainer)


def start_processes(trainer: L.Trainer) -> None:
    """Starts a training's other processes, unless that is done already, and connects all.

    Lightning would when it fits; but they share in what comes before, too.
    """
    strategy = trainer.strategy
    launcher = strategy.launcher
    if trainer.world_size == 1 or dist.is_initialized():
        return
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(trainer.num_devices))
    with torch.random.fork_rng(devices=[]):  # connecting them seeds anew
        if isinstance(launcher, _SubprocessScriptLauncher):
            launcher.launch(strategy.setup_environment)
        elif launcher is None:  # they run already
            strategy.setup_environment()
    quiet_others()


def log_global_batch(trainer: L.Trainer, batch_size: int, learning_rate: float) -> None:
    """Logs how many images a step takes, if not `batch_size`, and what that does to its rate."""
    num_processes, num_batches = trainer.world_size, trainer.accumulate_grad_batches
    if num_processes * num_batches == 1:
        return
    log.info(
        "each step takes %d images: data.batch_size=%d × %d processes × %d accumulated batches. "
        "The learning rate is not scaled with it: it is training.optimizer.learning_rate=%g, as "
        "for any batch.",
        batch_size * num_processes * num_batches,
        batch_size,
        num_processes,
        num_batches,
        learning_rate,
    )
