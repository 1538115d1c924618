"""Progress of a training run: a bar in a terminal, and a line every half minute elsewhere."""

import logging
import sys
import time
from typing import Annotated, Any

import lightning as L
from annotated_types import Gt
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

__all__ = ["StepProgress"]

log = logging.getLogger("taming")


class StepProgress(ProgressBar):
    """Shows the step, the losses, the speed and the time left.

    Lightning's own bar counts batches of an epoch, which never ends here, starts at 0 after a
    resume, and prints two updates per batch into a log file.

    Args:
        seconds_between_lines: how often a line is logged if the output is not a terminal.
    """

    def __init__(self, seconds_between_lines: Annotated[float, Gt(0)] = 30.0) -> None:
        super().__init__()
        self.seconds_between_lines = seconds_between_lines
        self._enabled = True
        self._bar: tqdm[Any] | None = None  # in a terminal
        self._first_step = 0  # of this session
        self._start = self._latest_line = 0.0

    def disable(self) -> None:
        """Shows nothing: Lightning calls it on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        tqdm.write(sep.join(map(str, args)), **kwargs)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts at the step of a resumed run, which is not known before."""
        if trainer.current_epoch > 0 or not self._enabled:
            return
        self._first_step = trainer.global_step
        self._start = self._latest_line = time.monotonic()
        if self._first_step > 0:
            log.info("resumed at step %d", self._first_step)
        if sys.stderr.isatty():
            self._bar = tqdm(
                desc="training", initial=self._first_step, total=trainer.max_steps, unit="step",
                dynamic_ncols=True, smoothing=0,
            )  # fmt: skip

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._show(trainer)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._show(trainer, f"validating: {batch_idx + 1}/{sum(trainer.num_val_batches)}")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._show(trainer)

    def _show(self, trainer: L.Trainer, activity: str = "training") -> None:
        if self._bar is not None:
            self._bar.set_postfix(_losses(trainer), refresh=False)
            self._bar.update(trainer.global_step - self._bar.n)
            self._bar.set_description(activity, refresh=activity != "training")
        elif self._enabled and time.monotonic() - self._latest_line >= self.seconds_between_lines:
            self._latest_line = time.monotonic()
            log.info("%s", self._line(trainer, activity))

    def _line(self, trainer: L.Trainer, activity: str) -> str:
        step, max_steps = trainer.global_step, trainer.max_steps
        parts = [f"{activity}, step {step}/{max_steps}"]
        parts += [f"{name} {value}" for name, value in _losses(trainer).items()]
        if step > self._first_step:
            seconds_per_step = (time.monotonic() - self._start) / (step - self._first_step)
            remaining = tqdm.format_interval(seconds_per_step * (max_steps - step))
            parts += [f"{1 / seconds_per_step:.3g} steps/s", f"{remaining} left"]
        return ", ".join(parts)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self.on_train_end(trainer, pl_module)


def _losses(trainer: L.Trainer) -> dict[str, str]:
    """Returns the metrics logged with `prog_bar=True`, without the name of their stage."""
    metrics = trainer.progress_bar_metrics
    return {name.rpartition("/")[2]: f"{value:.4g}" for name, value in metrics.items()}
