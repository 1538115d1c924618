"""The processes of a training run: choosing a strategy for them, starting and connecting them."""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

from taming.data.module import ImageDataModule
from taming.runtime.devices import silence_other_ranks
from taming.runtime.process_group import on_first_rank, rank
from taming.training.strategies import data_parallel

__all__ = ["choose_strategy", "connect_processes", "environment_plugins", "log_global_batch",
    "set_up_data", "start_processes"]  # fmt: skip

log = logging.getLogger("taming")


def choose_strategy(settings: Mapping[str, Any], discriminator: bool) -> Any:
    """Returns the user's strategy, or else data-parallel training on several devices."""
    # Lightning takes all GPUs with devices=auto
    one_device = str(settings["devices"]) == "1" or (
        settings["devices"] == "auto" and torch.cuda.device_count() <= 1
    )
    if settings["strategy"] != "auto" or (one_device and settings["num_nodes"] == 1):
        return settings["strategy"]
    return data_parallel(discriminator, accumulates=settings["accumulate_grad_batches"] > 1)


def environment_plugins(plugins: Sequence[Any] = ()) -> list[SLURMEnvironment]:
    """Returns a plugin that stops Lightning from requeueing a SLURM job, in such a job.

    Lightning would save its checkpoint in the middle of a step. `train` ends the step first, and
    leaves requeueing to submitit. The user's `plugins` may have an environment already.
    """
    if any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
        return []
    if SLURMEnvironment.detect() and not TorchElasticEnvironment.detect():
        return [SLURMEnvironment(auto_requeue=False)]
    return []


def connect_processes(trainer: L.Trainer) -> None:
    """Connects the processes that `torchrun`, SLURM or the like has started for training."""
    environment = getattr(trainer.strategy, "cluster_environment", None)  # None: a single device
    if not isinstance(environment, LightningEnvironment | None):
        start_processes(trainer)


def start_processes(trainer: L.Trainer) -> None:
    """Starts the other processes of a training run if nothing else does, and connects all.

    Lightning would start them in `fit`, but they also share the work that comes before it.
    """
    strategy, launcher = trainer.strategy, trainer.strategy.launcher
    if trainer.world_size == 1 or dist.is_initialized():
        return
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(trainer.num_devices))
    with torch.random.fork_rng(devices=[]):  # connecting them seeds the random numbers
        if launcher is None:  # they are running already
            strategy.setup_environment()
        elif not launcher.is_interactive_compatible:  # it starts the script again
            launcher.launch(strategy.setup_environment)
    silence_other_ranks()


def set_up_data(data: L.LightningDataModule, trainer: L.Trainer | None = None) -> None:
    """Sets up the data; the first process checks the images before `trainer` starts the others."""

    @cache
    def find_images() -> Any:
        data.setup("fit")
        return getattr(data, "parts", None)

    if trainer is not None:
        if trainer.strategy.launcher is not None:
            find_images()
        start_processes(trainer)
    parts = on_first_rank(find_images)
    if rank() > 0:
        if isinstance(data, ImageDataModule):
            data.parts = parts
        data.setup("fit")


def log_global_batch(trainer: L.Trainer, batch_size: int, learning_rate: float) -> None:
    """Logs how many images a step takes, unless it is `batch_size`."""
    num_processes, num_batches = trainer.world_size, trainer.accumulate_grad_batches
    if num_processes * num_batches == 1:
        return
    log.info(
        f"each step takes {batch_size * num_processes * num_batches} images: data.batch_size="
        f"{batch_size} × {num_processes} processes × {num_batches} accumulated batches. The "
        "learning rate is not scaled with this number: it stays "
        f"training.optimizer.learning_rate={learning_rate:g}."
    )
