"""What happens around the steps: progress, checkpoints, and ending well."""

import logging
import math
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from tqdm import tqdm

from taming.errors import UserError
from taming.training.checkpoint_io import WholeFileCheckpointIO
from taming.training.module import TrainingModule

__all__ = [
    "Checkpoints",
    "Progress",
    "StopTraining",
    "TrainingInterrupted",
    "parse_duration",
    "peak_memory",
]

log = logging.getLogger("taming")


class TrainingInterrupted(Exception):  # noqa: N818
    """The user or the machine asked the training to end; its state is whole."""


def parse_duration(text: str) -> float:
    """`"90s"`, `"45m"`, `"1h30m"` to seconds.

    Raises:
        UserError: for anything else.
    """
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", str(text).strip())
    if not match or not any(match.groups()):
        raise UserError(f"trainer.max_time is a duration such as 90s, 45m or 1h30m, not {text!r}.")
    hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds


class StopTraining(L.Callback):
    """Ends the training at `max_steps`, after `max_time`, or on Ctrl-C, always between two steps.

    Args:
        max_time: seconds from the start of this session; None: no limit.
    """

    def __init__(self, max_time: float | None) -> None:
        self.max_time = max_time
        self.interrupted = False
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock and listens to Ctrl-C and to a scheduler's request to end."""
        self._started = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:  # asked twice: at once
            raise KeyboardInterrupt
        self.interrupted = True
        print("\nending after this step; once more ends at once", file=sys.stderr)  # noqa: T201

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Looks whether it is time to end."""
        assert isinstance(pl_module, TrainingModule)
        if not pl_module.between_steps:
            return
        out_of_time = self.max_time is not None and time.monotonic() - self._started > self.max_time
        interrupted = self.interrupted
        if trainer.world_size > 1:  # all ranks end after the same step
            decide = trainer.strategy.reduce_boolean_decision
            out_of_time, interrupted = (
                decide(out_of_time, all=False),
                decide(interrupted, all=False),
            )
        if interrupted:
            raise TrainingInterrupted
        if pl_module.step >= pl_module.max_steps or out_of_time:
            trainer.should_stop = True

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Gives the signals back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Gives them back too: Lightning tears callbacks down only after a good end."""
        self.teardown(trainer, pl_module, "fit")


class Checkpoints(L.Callback):
    """`last.ckpt` at validations, every `save_every` steps and at the end; `best.ckpt` by a number.

    Args:
        directory: where to write.
        monitor: the number by which the best is chosen, e.g. `"val/loss"`.
        mode: `"min"` or `"max"`.
        val_every: steps between validations.
        save_every: steps between checkpoints besides those at validations; None: only there.
    """

    def __init__(
        self, directory: Path, *, monitor: str, mode: str, val_every: int, save_every: int | None
    ) -> None:
        self.directory = directory
        self.monitor = monitor
        self.mode = mode
        self.val_every = val_every
        self.save_every = save_every
        self.best: float | None = None
        self.best_step: int | None = None
        self.best_metrics: dict[str, float] = {}
        self._last_step = -1  # of the last.ckpt this session wrote

    @property
    def last_path(self) -> Path:
        """The newest checkpoint."""
        return self.directory / "last.ckpt"

    @property
    def best_path(self) -> Path:
        """The one best by `monitor`."""
        return self.directory / "best.ckpt"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to know of the best."""
        return {
            "best": self.best,
            "best_step": self.best_step,
            "best_metrics": self.best_metrics,
            "monitor": (self.monitor, self.mode),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there; by another number than before, the next validation is the best."""
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]
        self.best_metrics = state_dict["best_metrics"]
        monitored = (self.monitor, self.mode)
        if tuple(state_dict.get("monitor", monitored)) != monitored:
            self.best = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A diverged training ends here: there is nothing to validate."""
        assert isinstance(pl_module, TrainingModule)
        pl_module.require_finite()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves the last, and the best if it is."""
        assert isinstance(pl_module, TrainingModule)
        # ranks must agree, and of `val/gap` each has its own
        value = trainer.strategy.broadcast(pl_module.latest[self.monitor])
        sign = 1 if self.mode == "min" else -1
        if math.isfinite(value) and (self.best is None or sign * value < sign * self.best):
            before = self.state_dict()
            self.best, self.best_step = value, pl_module.step
            self.best_metrics = pl_module.val_metrics
            if not self._try_save(trainer, self.best_path):
                self.load_state_dict(before)  # the file is still that of the earlier best
        self._try_save(trainer, self.last_path)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Saves the last every `save_every` steps."""
        assert isinstance(pl_module, TrainingModule)
        due = self.save_every is not None and pl_module.step % self.save_every == 0
        # validation saves too, and a run killed in it must come to it again
        validated = pl_module.step % self.val_every == 0 or pl_module.step == pl_module.max_steps
        if due and not validated and pl_module.between_steps:
            pl_module.require_finite()
            self._try_save(trainer, self.last_path)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves the last, if the validation just before has not; a failure here is an error."""
        assert isinstance(pl_module, TrainingModule)
        if self._last_step != pl_module.step:
            pl_module.require_finite()
            self._save(trainer, self.last_path)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Saves an interrupted training, whose state is whole; of a failed one nothing."""
        if isinstance(exception, TrainingInterrupted):
            assert isinstance(pl_module, TrainingModule)
            pl_module.require_finite()
            self._save(trainer, self.last_path)

    def _try_save(self, trainer: L.Trainer, path: Path) -> bool:
        try:
            self._save(trainer, path)
        except UserError as error:
            log.warning("%s Training goes on.", error)
            return False
        return True

    def _save(self, trainer: L.Trainer, path: Path) -> None:
        """The same on all ranks, of which the first writes."""
        trainer.save_checkpoint(path)
        files = trainer.strategy.checkpoint_io
        assert isinstance(files, WholeFileCheckpointIO)
        failure = trainer.strategy.broadcast(files.failure)
        if failure is not None:
            kept = f"The earlier {path.name} is intact. " if path.exists() else ""
            raise UserError(
                f"the checkpoint {path} could not be written ({failure}). {kept}Is the disk full? "
                "Free some space."
            )
        if path == self.last_path:
            assert isinstance(trainer.lightning_module, TrainingModule)
            self._last_step = trainer.lightning_module.step


class Progress(L.Callback):
    """One bar over all steps: step, time per step, time left, losses, memory.

    Args:
        show: names of reported numbers to show, without `train/` or `val/`.
    """

    def __init__(self, show: tuple[str, ...]) -> None:
        self.show = show

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Opens the bar."""
        assert isinstance(pl_module, TrainingModule)
        self.bar = tqdm(
            total=pl_module.max_steps,
            initial=pl_module.step,
            disable=not trainer.is_global_zero,
            unit="step",
            desc="training",
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 10,
        )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Moves it."""
        assert isinstance(pl_module, TrainingModule)
        self._describe(pl_module)
        self.bar.update(pl_module.step - self.bar.n)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Prints the validation's numbers above the bar."""
        assert isinstance(pl_module, TrainingModule)
        if trainer.is_global_zero:
            numbers = pl_module.val_metrics
            text = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items())
            tqdm.write(f"step {pl_module.step}: {text}", file=sys.stderr)

    def _describe(self, module: TrainingModule) -> None:
        shown = {
            name: f"{module.latest[f'train/{name}']:.3g}"
            for name in self.show
            if f"train/{name}" in module.latest
        }
        self.bar.set_postfix({**shown, "memory": _memory(module.device)}, refresh=False)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Closes the bar."""
        if hasattr(self, "bar"):
            self.bar.close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Closes it too: Lightning tears callbacks down only after a good end."""
        self.teardown(trainer, pl_module, "fit")


def _memory(device: torch.device) -> str:
    """The peak memory of the process: on the GPU if that is where it trains, else in RAM."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f}GiB"
    return f"{peak_memory():.1f}GiB"


def peak_memory(who: int = resource.RUSAGE_SELF) -> float:
    """The peak memory of the process, or of the largest of its finished children, in GiB."""
    peak = resource.getrusage(who).ru_maxrss  # KiB, on macOS bytes
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
