"""What a training takes of memory and disk: before it starts, and when a GPU has too little."""

import logging
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from taming.runtime.errors import UserError
from taming.training import TrainingModule

__all__ = ["advising_less_memory", "check_room"]

log = logging.getLogger("taming")
warn = rank_zero_only(log.warning)


def check_room(config: DictConfig, module: TrainingModule, trainer: L.Trainer) -> None:
    """Says in a line what the run takes of memory and disk, and what there is.

    Of memory it is what every step takes: weights, gradients, Adam's two moments, the average; what
    the layers compute of a batch comes on top. On the disk there are `best.ckpt`, the last ones
    that are kept, and one that is being written.

    Raises:
        UserError: if there cannot be enough.
    """
    weights = sum(weight.nbytes for weight in module.parameters())
    trained = sum(weight.nbytes for weight in module.parameters() if weight.requires_grad)
    averages = any(isinstance(c, WeightAveraging) for c in trainer.callbacks)  # type: ignore[attr-defined]
    copies = 2 if averages else 1
    memory = copies * weights + 3 * trained
    least = weights / 2  # half precision, another optimizer
    if isinstance(trainer.strategy, FSDPStrategy):
        memory, least = memory // trainer.world_size, least / trainer.world_size
        # each step also holds all weights and gradients unsplit, as a rule in half precision
        memory += trained * (2 if trainer.precision == "32-true" else 1)
    total = _memory_of(trainer.strategy.root_device)
    checkpoint = copies * sum(t.nbytes for t in module.state_dict().values()) + 2 * trained
    disk = checkpoint * (config.keep_checkpoints + 2)
    run_dir = Path(config.run_dir)
    files = (path for path in (run_dir / "checkpoints").rglob("*") if path.is_file())
    there, free = sum(path.stat().st_size for path in files), shutil.disk_usage(run_dir).free
    found = (
        f"{_size(memory)} of {_size(total)} of memory, and more for the images of a batch; up to "
        f"{_size(disk)} of disk for checkpoints, where {_size(free)} are free"
    )
    smaller = "Make the model smaller, or split stage 2 among GPUs (trainer=fsdp)."
    if least > total:
        raise UserError(f"the training needs {found}. {smaller}")
    if free < checkpoint:
        raise UserError(f"the training needs {found}: too little for even one. Free some.")
    if memory > total:
        warn("the training may need %s. %s", found, smaller)
    elif free + there < disk:
        warn("the training needs %s. Free some, or keep one checkpoint: keep_checkpoints=1", found)
    else:
        log.info("needs %s", found)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _memory_of(device: torch.device) -> float:
    """Returns the bytes of memory of a GPU, or of the machine; infinity if it does not say."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):
        return math.inf
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def advising_less_memory(config: DictConfig) -> Iterator[None]:
    """Notes which settings let a training take less of a GPU's memory, if it has run out of it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        advice = []
        batch_size = OmegaConf.select(config, "data.batch_size") or 1
        if batch_size > 1:
            num_batches = 2 * config.trainer.accumulate_grad_batches
            advice.append(
                f"data.batch_size={batch_size // 2} trainer.accumulate_grad_batches={num_batches}, "
                "which computes the same step in halves"
            )
        if not config.training.get("checkpointing", True):
            advice.append("training.checkpointing=true, which takes more time")
        error.add_note(
            f"Give {'; or '.join(advice) or 'a smaller model'}. If the run has saved a checkpoint, "
            f"it can go on so: resume={config.run_dir}."
        )
        raise
