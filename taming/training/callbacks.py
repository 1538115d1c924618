"""How a training ends."""

import signal
import sys
import threading
from types import FrameType
from typing import Any

import lightning as L

__all__ = ["EndAfterStep", "TrainingInterrupted"]


class TrainingInterrupted(Exception):  # noqa: N818
    """Raised between two steps when the user wants the training to end."""


class EndAfterStep(L.Callback):
    """Ends the training between two steps at Ctrl-C, and validates its last step.

    Lightning ends in the midst of a step at Ctrl-C, and without a validation at `max_steps`.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over Ctrl-C."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:  # the second time: at once
            raise KeyboardInterrupt
        self.requested = True
        print("\nending after this step; once more ends at once", file=sys.stderr)  # noqa: T201

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Ends before the first batch of the next step, when all callbacks have seen the last."""
        requested = self.requested
        if batch_idx % trainer.accumulate_grad_batches:
            return
        if trainer.world_size > 1:  # all ranks end after the same step; asking each step is slow
            requested = trainer.global_step % 20 == 0 and trainer.strategy.reduce_boolean_decision(
                requested, all=False
            )
        if requested:
            raise TrainingInterrupted

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """Has the last step validated."""
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Gives the signal back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Gives the signal back: Lightning tears callbacks down only after a good end."""
        self.teardown(trainer, pl_module, "fit")
