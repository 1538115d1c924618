"""How checkpoints are written while the training goes on, how often, and what time it takes."""

import io
import logging
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import lightning as L
import torch
from annotated_types import Ge, Gt
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from taming.runtime.errors import replacing
from taming.serialization import read_training_checkpoint
from taming.training.callbacks import TrainingInterrupted, is_asked_after
from taming.training.module import TrainingModule

__all__ = ["IntervalCheckpoint", "LastCheckpoint", "SavingShare", "WholeFileCheckpointIO"]

log = logging.getLogger("taming")

MAX_WAITING = 2  # in memory: best.ckpt and last.ckpt of one validation


class WholeFileCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints in a thread, each beside its place until it is whole.

    A checkpoint is made in the host's memory first, where the next steps do not change it. A full
    disk or a kill costs the new checkpoint, never the old one, and does not end the training.

    Lightning's own plugin writes to the system's directory for temporary files first, which may be
    small. Its `AsyncCheckpointIO` makes copies on the GPU, any number of them, stores tensors twice
    that share their memory, and ends the training when the disk is full.

    Args:
        keep: how many of the checkpoints saved as `last.ckpt` are kept: it, `last-1.ckpt` …

    Attributes:
        failures: by file, why its latest checkpoint is not on the disk.
        seconds: how long saving has held up the training.
    """

    def __init__(self, keep: Annotated[int, Ge(1)] = 2) -> None:
        self.keep = keep
        self.failures: dict[Path, str] = {}
        self.seconds = 0.0
        self._thread = ThreadPoolExecutor(1, "checkpoints")  # one: files come in their order
        self._waiting: list[Future[None]] = []

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Takes down `checkpoint`, to be written to `path` while the training goes on."""
        started = time.perf_counter()
        self._wait(MAX_WAITING - 1)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        self._waiting.append(self._thread.submit(self._write, content, Path(path)))
        self.seconds += time.perf_counter() - started

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a file once the checkpoints saved before are written."""
        self._waiting.append(self._thread.submit(super().remove_checkpoint, path))

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Reads a checkpoint, of several processes too, once those saved before are written."""
        self._wait()
        if Path(path).is_dir():
            return read_training_checkpoint(Path(path))[0]
        return super().load_checkpoint(path, *args, **kwargs)

    def teardown(self) -> None:
        """Waits until everything is written: Lightning calls it at each end of a training."""
        self._wait()

    def _wait(self, at_most: int = 0) -> None:
        """Waits until only `at_most` files are to be written."""
        while len(self._waiting) > at_most:
            self._waiting.pop(0).result()

    def _write(self, content: io.BytesIO, path: Path) -> None:
        """Writes a checkpoint to `path`, or warns why it cannot."""
        self.failures.pop(path, None)
        new = path.with_suffix(".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(new, "wb") as file:
                file.write(content.getbuffer())
            self.put(new, path)
        except OSError as error:
            self.report_failure(path, error)

    def put(self, new: Path, path: Path) -> None:
        """Puts a whole checkpoint, a file or a directory, in its place, and the earlier aside."""
        old, places = path.with_suffix(".old"), [path]
        if path.stem == "last":
            places += [path.with_stem(f"last-{n}") for n in range(1, self.keep)]
        directory = new.is_dir() or path.is_dir()  # which cannot be replaced
        if path.exists() and (len(places) > 1 or directory):
            remove(old)
            for older, newer in pairwise([old, *reversed(places)]):
                if newer.exists():
                    newer.rename(older)
        new.replace(path)
        remove(old)

    def report_failure(self, path: Path, error: BaseException) -> None:
        """Warns why a checkpoint is not on the disk."""
        kept = f" The earlier {path.name} is intact." if path.exists() else ""
        self.failures[path] = (
            f"the checkpoint {path} could not be written ({error}).{kept} Is the disk full? "
            "Free some space."
        )
        log.warning("%s Training goes on.", self.failures[path])


def remove(path: Path) -> None:
    """Removes a checkpoint, a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def set_aside(path: Path) -> None:
    """Renames a damaged checkpoint to `*.damaged`."""
    aside = path.with_name(f"{path.name}.damaged")
    remove(aside)
    path.rename(aside)


class LastCheckpoint(ModelCheckpoint):
    """Saves a checkpoint at each validation, and, in one process, when something fails.

    Saving needs all ranks. If one fails alone, it would wait for the others, and they for its
    gradients, until the timeout.
    """

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Saves one where all ranks are sure to come here: with one process, or at a signal."""
        if trainer.world_size == 1 or isinstance(exception, TrainingInterrupted):
            super().on_exception(trainer, pl_module, exception)


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
        if is_asked_after(trainer, index):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, index)


class SavingShare(L.Callback):
    """Logs which share of the training's time saving has taken so far: `train/saving_share`."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Logs it together with the training's other metrics."""
        assert isinstance(pl_module, TrainingModule)
        files = trainer.strategy.checkpoint_io
        if pl_module.report and isinstance(files, WholeFileCheckpointIO):
            share = files.seconds / (time.perf_counter() - self._started)
            pl_module.log("train/saving_share", share)
