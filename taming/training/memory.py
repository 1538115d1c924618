"""The memory and disk space that a training run needs."""

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

from taming.runtime.errors import UserError
from taming.training.module import TrainingModule

__all__ = ["advising_less_memory", "check_room"]

log = logging.getLogger("taming")
warn = rank_zero_only(log.warning)


def check_room(
    module: TrainingModule, trainer: L.Trainer, run_dir: Path, num_checkpoints: int
) -> None:
    """Logs how much memory and disk space the run needs, and how much there is.

    The memory is that of weights, gradients, Adam's two moments and the averaged weights, without
    activations. The disk holds `best.ckpt`, the latest `num_checkpoints` and an unfinished one.

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
        # each step also holds all weights and gradients unsplit, usually in half precision
        memory += trained * (2 if trainer.precision == "32-true" else 1)
    total = _memory_of(trainer.strategy.root_device)
    checkpoint = copies * sum(t.nbytes for t in module.state_dict().values()) + 2 * trained
    disk = checkpoint * (num_checkpoints + 2)
    files = (path for path in (run_dir / "checkpoints").rglob("*") if path.is_file())
    used, free = sum(path.stat().st_size for path in files), shutil.disk_usage(run_dir).free
    needs = (
        f"{_size(memory)} of {_size(total)} of memory, and more for the images of a batch; up to "
        f"{_size(disk)} of disk space for checkpoints ({_size(free)} free)"
    )
    smaller = "Make the model smaller, or split stage 2 among GPUs (trainer=fsdp)."
    if least > total:
        raise UserError(f"the run needs {needs}. {smaller}")
    if free < checkpoint:
        raise UserError(f"the run needs {needs}, too little for one checkpoint. Free some space.")
    if memory > total:
        warn("the run may need %s. %s", needs, smaller)
    elif free + used < disk:
        advice = "Free some space, or keep one checkpoint: keep_checkpoints=1"
        warn("the run needs %s. %s", needs, advice)
    else:
        log.info("needs %s", needs)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _memory_of(device: torch.device) -> float:
    """Returns the bytes of memory of a GPU or of the machine; infinity if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):
        return math.inf
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def advising_less_memory(
    module: TrainingModule, trainer: L.Trainer, run_dir: Path, batch_size: int
) -> Iterator[None]:
    """Adds settings that need less memory to the error of a GPU that has run out of it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        advice = []
        if batch_size > 1:
            num_batches = 2 * trainer.accumulate_grad_batches
            advice.append(
                f"data.batch_size={batch_size // 2} trainer.accumulate_grad_batches={num_batches}, "
                "which computes the same step in halves"
            )
        parts = [part for part in module.modules() if hasattr(part, "checkpointing")]
        if parts and not any(part.checkpointing for part in parts):
            advice.append("training.checkpointing=true, which takes more time")
        error.add_note(
            f"Give {'; or '.join(advice) or 'a smaller model'}. If the run has saved a checkpoint, "
            f"resume it with these settings: resume={run_dir}."
        )
        raise
