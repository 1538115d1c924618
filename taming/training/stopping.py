"""Stops training between two steps, at a signal or when its time is up."""

import signal
import sys
import threading
import time
from datetime import timedelta
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.trainer.states import RunningStage

__all__ = ["Clock", "EndAfterStep", "TrainingInterrupted", "ranks_can_agree"]

STEPS_BETWEEN_AGREEMENTS = 20  # of several ranks: each agreement waits for the GPU
NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")  # Windows lacks the last two
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


class TrainingInterrupted(Exception):  # noqa: N818
    """Raised between two steps when a signal ends the training."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


def ranks_can_agree(trainer: L.Trainer, batch_idx: int) -> bool:
    """Returns whether a batch ends a step after which all ranks may decide something together."""
    if (batch_idx + 1) % trainer.accumulate_grad_batches:
        return False
    return trainer.world_size == 1 or trainer.global_step % STEPS_BETWEEN_AGREEMENTS == 0


class EndAfterStep(L.Callback):
    """Ends the training between two steps at a signal, and requests a last validation.

    The signals are SIGINT (Ctrl-C), SIGTERM, with which schedulers end a job, and SIGUSR1 and
    SIGUSR2, with which they announce its end. Lightning stops within a step at Ctrl-C, exits with
    the status of success at SIGTERM, and does not validate at `max_steps`.
    """

    def __init__(self) -> None:
        self.requested = 0  # the number of the signal
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.requested = signal.SIGTERM if trainer.received_sigterm else 0  # during the set-up
        if trainer.world_size > 1:
            # Lightning broadcasts before every batch whether it got SIGTERM, which waits for the
            # GPU. It has no setting for this, so pyproject.toml limits its version.
            loop: Any = trainer.fit_loop.epoch_loop
            loop._broadcast_sigterm_tensor = lambda: None
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers = {
                number: signal.signal(number, self._request) for number in SIGNALS
            }

    def _request(self, number: int, frame: FrameType | None) -> None:
        if number == self.requested == signal.SIGINT:  # the second one ends the process at once
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = number
        hint = " Press Ctrl-C again to stop at once." if number == signal.SIGINT else ""
        print(  # noqa: T201
            f"\n{signal.Signals(number).name}: stopping after this step.{hint}", file=sys.stderr
        )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Ends the training before a new step, after all callbacks have seen the previous one."""
        if not ranks_can_agree(trainer, batch_idx - 1):
            return
        requested = self.requested
        if trainer.world_size > 1:  # all ranks end after the same step
            own_request = torch.tensor(requested, device=trainer.strategy.root_device)
            requested = int(trainer.strategy.reduce(own_request, reduce_op="max"))
        if requested:
            raise TrainingInterrupted(requested)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True  # with a last validation

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self.on_train_end(trainer, pl_module)


class Clock(Timer):
    """Lightning's timer, which also measures the speed and reserves time for the last validation.

    The limit, `max_time`, includes the last validation: the training ends when the remaining time
    is no longer than the latest validation. Lightning's timer checks after each batch, which can be
    within a step, and makes all ranks wait for the first.

    Args:
        duration: the limit, as in Lightning's `Timer`; None for no limit.
    """

    def __init__(self, duration: str | timedelta | dict[str, int] | None = None) -> None:
        super().__init__(duration)
        self._num_images = 0
        self._validation_seconds = 0.0

    @property
    def state_key(self) -> str:
        """The key in checkpoints, the same as for Lightning's timer."""
        return Timer.__qualname__

    @property
    def images_per_second(self) -> float:
        """Training images per second in this session, without the time of validations."""
        start = self.start_time()
        if start is None:
            return 0.0
        seconds = (self.end_time() or time.monotonic()) - start - self._validation_seconds
        return self._num_images / seconds

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        self._num_images += len(next(iter(batch.values()))) * trainer.world_size
        if ranks_can_agree(trainer, index):
            self._stop_in_time(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        self._validation_seconds += self.time_elapsed(RunningStage.VALIDATING)
        self._stop_in_time(trainer)

    def _stop_in_time(self, trainer: L.Trainer) -> None:
        remaining = self.time_remaining()
        if remaining is not None:
            is_late = remaining <= self.time_elapsed(RunningStage.VALIDATING)
            trainer.should_stop |= trainer.strategy.broadcast(is_late)
