"""How a training ends, what time it takes, and the average of its weights."""

import signal
import sys
import threading
import time
from datetime import timedelta
from types import FrameType
from typing import Annotated, Any

import lightning as L
import torch
from annotated_types import Ge, Lt
from lightning.pytorch.callbacks import Timer, WeightAveraging
from lightning.pytorch.trainer.states import RunningStage

__all__ = ["Clock", "EndAfterStep", "TrainingInterrupted", "WarmEMA", "average_weights"]

STEPS_BETWEEN_QUESTIONS = 20  # to all ranks, such as whether to end: each waits for the GPU


SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


class TrainingInterrupted(Exception):  # noqa: N818
    """Raised between two steps when a signal wants the training to end."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


def is_asked_after(trainer: L.Trainer, batch_idx: int) -> bool:
    """Returns whether it is time to ask all ranks: after a whole step, of several every 20th."""
    if (batch_idx + 1) % trainer.accumulate_grad_batches:
        return False
    return trainer.world_size == 1 or trainer.global_step % STEPS_BETWEEN_QUESTIONS == 0


class EndAfterStep(L.Callback):
    """Ends the training between two steps at a signal, and validates its last step.

    The signals are Ctrl-C's SIGINT, and those by which schedulers end a job, SIGTERM, or warn of
    its end, SIGUSR1 and SIGUSR2. Lightning ends in the midst of a step at Ctrl-C, at SIGTERM with
    the exit status of success, and without a validation at `max_steps`. It also asks the first of
    several processes before every batch whether it got SIGTERM, which waits for the GPU.
    """

    def __init__(self) -> None:
        self.requested = 0  # the number of the signal
        self._previous: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Installs the handlers."""
        self.requested = signal.SIGTERM if trainer.received_sigterm else 0  # while data were loaded
        if trainer.world_size > 1:
            loop: Any = trainer.fit_loop.epoch_loop
            loop._broadcast_sigterm_tensor = lambda: None
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._request) for number in SIGNALS}

    def _request(self, number: int, frame: FrameType | None) -> None:
        if number == self.requested == signal.SIGINT:  # at once, and nothing of half a step is kept
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = number
        again = "; once more ends at once" if number == signal.SIGINT else ""
        name = signal.Signals(number).name
        print(f"\n{name}: ending after this step{again}", file=sys.stderr)  # noqa: T201

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Ends the training before a new step, when all callbacks have seen the last one."""
        if not is_asked_after(trainer, batch_idx - 1):
            return
        requested = self.requested
        if trainer.world_size > 1:  # all ranks end after the same step
            mine = torch.tensor(requested, device=trainer.strategy.root_device)
            requested = int(trainer.strategy.reduce(mine, reduce_op="max"))
        if requested:
            raise TrainingInterrupted(requested)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """Requests a validation after the last step."""
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restores the previous signal handlers, before Lightning restores those before its own."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self.on_train_end(trainer, pl_module)


class Clock(Timer):
    """Lightning's timer: how long a run takes over its resumes, how fast it is, and its time limit.

    The limit, `max_time`, includes the last validation: a training ends when no more time is left
    than the latest validation took. Lightning's own looks at the clock after each batch: a training
    of several batches a step would end in the midst of one, and the ranks of several would wait for
    the first at each.
    """

    def __init__(self, duration: str | timedelta | dict[str, int] | None = None) -> None:
        super().__init__(duration)
        self._num_images = 0
        self._validation_seconds = 0.0

    @property
    def state_key(self) -> str:
        """The key in checkpoints: that of Lightning's own."""
        return Timer.__qualname__

    @property
    def images_per_second(self) -> float:
        """The training images a second in this session, not counting the time of validations."""
        started = self.start_time()
        if started is None:
            return 0.0
        return self._num_images / (
            (self.end_time() or time.monotonic()) - started - self._validation_seconds
        )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Counts the images, and ends the training when its time is up."""
        self._num_images += len(next(iter(batch.values()))) * trainer.world_size
        if is_asked_after(trainer, index):
            super().on_train_batch_end(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Ends the training if there is no time for another validation."""
        super().on_validation_end(trainer, pl_module)
        self._validation_seconds += self.time_elapsed(RunningStage.VALIDATING)
        if self._duration is not None:
            self._check_time_remaining(trainer)

    def _check_time_remaining(self, trainer: L.Trainer) -> None:
        seconds = self.time_elapsed() + self.time_elapsed(RunningStage.VALIDATING)
        ends = self._duration is not None and seconds >= self._duration
        trainer.should_stop |= trainer.strategy.broadcast(ends)


class WarmEMA(WeightAveraging):
    """Averages the weights; validation, checkpoints and exports use the average.

    θ̄ ← d θ̄ + (1 − d) θ after each step, with d = min(decay, (1 + n) / (10 + n)) after n updates.
    Lightning's `EMAWeightAveraging` has a constant d, so that the random first weights dominate the
    average for 1 / (1 − d) steps, and it waits for the GPU at each update. Buffers are copied.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(use_buffers=False)
        self.decay = decay
        self._swapped = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Copies the weights to where, and in the precision in which, the model will be trained.

        Lightning leaves the copy where the model is at this moment, on the CPU.
        """
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            assert self._average_model is not None
            trainer.precision_plugin.convert_module(self._average_model)

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        num_updates = self._latest_update_step
        if trainer.global_step == num_updates:  # between accumulated batches
            return
        assert self._average_model is not None
        average = self._average_model.module
        decay = min(self.decay, (1 + num_updates) / (10 + num_updates))
        torch._foreach_lerp_(
            list(average.parameters()), [w.detach() for w in pl_module.parameters()], 1 - decay
        )
        for averaged, buffer in zip(average.buffers(), pl_module.buffers(), strict=True):
            averaged.copy_(buffer)
        self._latest_update_step = trainer.global_step

    def _swap_models(self, pl_module: L.LightningModule) -> None:
        super()._swap_models(pl_module)
        self._swapped = not self._swapped

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Puts the trained weights back after a failure in validation, before they are saved."""
        if self._swapped:
            self._swap_models(pl_module)


def average_weights(decay: Annotated[float, Ge(0), Lt(1)] | None) -> WarmEMA | None:
    """Returns the callback that averages the weights; None for no average."""
    return None if decay is None else WarmEMA(decay)
