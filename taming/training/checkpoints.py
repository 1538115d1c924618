"""How checkpoints are written while the training goes on, how often, and what time it takes."""

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import lightning as L
import torch
from annotated_types import Gt
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection

from taming.errors import replacing
from taming.training.callbacks import STEPS_BETWEEN_QUESTIONS
from taming.training.module import TrainingModule

__all__ = ["IntervalCheckpoint", "SavingShare", "WholeFileCheckpointIO"]

log = logging.getLogger("taming")

MAX_WAITING = 2  # copies in memory: best.ckpt and last.ckpt of one validation
LARGE_SHARE, LONG = 0.05, 60  # from where a note is worth it; in seconds


class WholeFileCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints in a thread, each beside its place until it is whole.

    A checkpoint is copied to the host's memory first, where the next steps do not change it. A full
    disk or a kill costs the new checkpoint, never the old one, and does not end the training.

    Lightning's own plugin writes to the system's directory for temporary files first, which may be
    small. Its `AsyncCheckpointIO` makes the copies on the GPU, any number of them, stores tensors
    twice that share their memory, and ends the training when the disk is full.

    Attributes:
        failures: by file, why its latest checkpoint is not on the disk.
        seconds: how long saving has held up the training.
    """

    def __init__(self) -> None:
        self.failures: dict[Path, str] = {}
        self.seconds = 0.0
        self._executor: ThreadPoolExecutor | None = None  # one thread: files come in their order
        self._waiting: list[Future[None]] = []

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Copies `checkpoint`, to be written to `path` while the training goes on."""
        started = time.perf_counter()
        self._wait(MAX_WAITING - 1)
        self._submit(self._write, copied_to_host(checkpoint), Path(path))
        self.seconds += time.perf_counter() - started

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a file once the checkpoints saved before are written."""
        self._submit(super().remove_checkpoint, path)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Reads a file once the checkpoints saved before are written."""
        self._wait()
        return super().load_checkpoint(*args, **kwargs)

    def teardown(self) -> None:
        """Waits until everything is written: Lightning calls it at each end of a training."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        self._wait()

    def _submit(self, function: Any, *arguments: Any) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._waiting.append(self._executor.submit(function, *arguments))

    def _wait(self, at_most: int = 0) -> None:
        """Waits until only `at_most` files are to be written; raises what was not foreseen."""
        while len(self._waiting) > at_most:
            self._waiting.pop(0).result()

    def _write(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Writes `checkpoint` to `path`, or warns why it cannot."""
        self.failures.pop(path, None)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, "wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch's word for a full disk
            reason = (str(error) or type(error).__name__).splitlines()[0]
            kept = f" The earlier {path.name} is intact." if path.exists() else ""
            self.failures[path] = (
                f"the checkpoint {path} could not be written ({reason}).{kept} Is the disk full? "
                "Free some space."
            )
            log.warning("%s Training goes on.", self.failures[path])


def copied_to_host(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Copies a checkpoint's tensors to the host's memory; what shares memory shares its copy."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in storages:
            storages[key] = torch.UntypedStorage(storage.nbytes()).copy_(storage)
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        return torch.empty(0, dtype=tensor.dtype).set_(storages[key], *place)

    return apply_to_collection(checkpoint, torch.Tensor, copied)


class IntervalCheckpoint(ModelCheckpoint):
    """Saves a checkpoint each time that some minutes have passed, always between two steps.

    `ModelCheckpoint(train_time_interval=...)` also saves in the midst of a step of several batches,
    from which no training can go on exactly, and lets all ranks wait for the first at each batch.

    Args:
        minutes: between two checkpoints; several ranks look at the clock every 20 steps.
        settings: those of `ModelCheckpoint`.
    """

    def __init__(self, minutes: Annotated[float, Gt(0)] = 10.0, **settings: Any) -> None:
        super().__init__(train_time_interval=timedelta(minutes=minutes), **settings)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Saves one after a step, if it is time."""
        if (index + 1) % trainer.accumulate_grad_batches:
            return
        if trainer.world_size == 1 or trainer.global_step % STEPS_BETWEEN_QUESTIONS == 0:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, index)


class SavingShare(L.Callback):
    """Logs which share of the training's time saving has taken so far: `train/saving_share`."""

    def __init__(self) -> None:
        self._started = 0.0

    def share(self, trainer: L.Trainer) -> float | None:
        """Returns it, None if it is not known."""
        checkpoints = trainer.strategy.checkpoint_io
        if not isinstance(checkpoints, WholeFileCheckpointIO):
            return None
        return checkpoints.seconds / (time.perf_counter() - self._started)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Logs it together with the training's other metrics."""
        assert isinstance(pl_module, TrainingModule)
        if pl_module.report and (share := self.share(trainer)) is not None:
            pl_module.log("train/saving_share", share)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tells what to do about a large share."""
        share = self.share(trainer) or 0.0
        long = share * (time.perf_counter() - self._started) > LONG
        if share > LARGE_SHARE and long and trainer.is_global_zero:
            log.warning(
                "%.0f%% of the training's time went into saving checkpoints. A larger "
                "callbacks.between.minutes or trainer.val_check_interval saves them less often.",
                100 * share,
            )
