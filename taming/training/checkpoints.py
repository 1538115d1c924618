"""When and how checkpoints are written while the training continues."""

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
from taming.training.module import TrainingModule
from taming.training.stopping import TrainingInterrupted, ranks_can_agree

__all__ = ["IntervalCheckpoint", "LastCheckpoint", "SavingShare", "WholeFileCheckpointIO",
    "put_in_place", "remove"]  # fmt: skip

log = logging.getLogger("taming")

MAX_QUEUED = 2  # in memory: best.ckpt and last.ckpt of one validation


class WholeFileCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints in a thread, each to a temporary file that replaces the earlier one.

    A checkpoint is serialised in the host's memory first, so that the next steps do not change it.
    A full disk or a kill loses the new checkpoint, never the old one, and the training continues.

    Lightning's own plugin first writes to the system's temporary directory, which may be small. Its
    `AsyncCheckpointIO` copies checkpoints on the GPU without a limit, stores tensors that share
    their memory twice, and ends the training when the disk is full.

    Args:
        keep: how many checkpoints saved as `last.ckpt` to keep: it, `last-1.ckpt` …

    Attributes:
        failures: by file, why its latest checkpoint is not on the disk.
        seconds: how long saving has held up the training.
    """

    def __init__(self, keep: Annotated[int, Ge(1)] = 2) -> None:
        self.keep = keep
        self.failures: dict[Path, str] = {}
        self.seconds = 0.0
        self._thread = ThreadPoolExecutor(1, "checkpoints")  # one thread keeps the order
        self._queue: list[Future[None]] = []

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Serialises `checkpoint` and queues the write to `path`."""
        start = time.perf_counter()
        self._wait(MAX_QUEUED - 1)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        self._queue.append(self._thread.submit(self._write, content, Path(path)))
        self.seconds += time.perf_counter() - start

    def remove_checkpoint(self, path: str | Path) -> None:
        self._queue.append(self._thread.submit(super().remove_checkpoint, path))

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Reads a checkpoint, a file or a directory, after all queued writes."""
        self._wait()
        if Path(path).is_dir():
            return read_training_checkpoint(Path(path))[0]
        return super().load_checkpoint(path, *args, **kwargs)

    def teardown(self) -> None:
        self._wait()

    def _wait(self, num_queued: int = 0) -> None:
        while len(self._queue) > num_queued:
            self._queue.pop(0).result()

    def _write(self, content: io.BytesIO, path: Path) -> None:
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
        """Moves a complete checkpoint to its place."""
        put_in_place(new, path, self.keep if path.stem == "last" else 1)

    def report_failure(self, path: Path, error: BaseException) -> None:
        """Warns why a checkpoint is not on the disk."""
        intact = f" The earlier {path.name} is intact." if path.exists() else ""
        self.failures[path] = (
            f"the checkpoint {path} could not be written ({error}).{intact} Is the disk full? "
            "Free some space."
        )
        log.warning("%s Training continues.", self.failures[path])


def put_in_place(new: Path, path: Path, num_versions: int = 1) -> None:
    """Moves a complete file or directory to `path`, and keeps earlier versions as `PATH-1` ….

    The last of `num_versions` is removed once the new one is in its place.
    """
    old = path.with_suffix(".old")
    places = [path, *(path.with_stem(f"{path.stem}-{n}") for n in range(1, num_versions))]
    is_directory = new.is_dir() or path.is_dir()  # which cannot be replaced
    if path.exists() and (num_versions > 1 or is_directory):
        remove(old)
        for older, newer in pairwise([old, *reversed(places)]):
            if newer.exists():
                newer.rename(older)
    new.replace(path)
    remove(old)


def remove(path: Path) -> None:
    """Removes a file, a link or a directory if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class LastCheckpoint(ModelCheckpoint):
    """Saves a checkpoint at each validation and, in a single process, after a failure.

    Saving needs all ranks. A rank that failed alone would wait for the others, and they for its
    gradients, until the timeout.
    """

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if trainer.world_size == 1 or isinstance(exception, TrainingInterrupted):
            super().on_exception(trainer, pl_module, exception)


class IntervalCheckpoint(ModelCheckpoint):
    """Saves a checkpoint every few minutes, always between two steps.

    `ModelCheckpoint(train_time_interval=...)` also saves within a step of several batches, from
    which no run can resume exactly, and makes all ranks wait for the first at each batch.

    Args:
        minutes: between two checkpoints; several ranks check the time every 20 steps.
        settings: further arguments of `ModelCheckpoint`.
    """

    def __init__(self, minutes: Annotated[float, Gt(0)] = 10.0, **settings: Any) -> None:
        super().__init__(train_time_interval=timedelta(minutes=minutes), **settings)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        if ranks_can_agree(trainer, index):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, index)


class SavingShare(L.Callback):
    """Logs the share of the training's time that saving has taken so far: `train/saving_share`."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        files = trainer.strategy.checkpoint_io
        if pl_module.report and isinstance(files, WholeFileCheckpointIO):
            share = files.seconds / (time.perf_counter() - self._start)
            pl_module.log_number("train/saving_share", share)
