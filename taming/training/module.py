"""What both stages share: the step counter, accumulation, clipping, EMA, reports, checkpoints."""

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import nn

from taming.errors import UserError
from taming.serialization import SavedModel, checkpoint_entry
from taming.training.ema import ExponentialMovingAverage
from taming.training.optimizer import OptimizerConfig
from taming.training.trackers import Tracker

__all__ = ["TrainingModule"]

log = logging.getLogger("taming")


class TrainingModule(L.LightningModule):
    """A LightningModule that counts steps itself.

    A step is one optimizer update of the generator (stage 1) or the transformer (stage 2), however
    many optimizers and accumulated batches are behind it. Learning rates, the discriminator's
    start, logs, checkpoints and the end of training all follow `self.step`, and so does the order
    of the data; Lightning's `global_step` is used for nothing.

    Args:
        model: what is trained, averaged and exported.
        max_steps: steps of the whole training; schedules end there.
        accumulate: batches per step.
        gradient_clip: largest norm of an optimizer's gradient; None: no clipping.
        ema_decay: decay of the averaged weights that validation and export use; None: no average.

    Attributes:
        step: finished steps.
        run_dir: where grids go; set by the training workflow, None writes nothing.
        trackers: where numbers and pictures go; set by the training workflow.
        latest: the newest value of every reported number, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_steps: int,
        accumulate: int,
        gradient_clip: float | None,
        ema_decay: float | None,
    ) -> None:
        super().__init__()
        if max_steps < 1:
            raise UserError(f"trainer.max_steps must be at least 1, not {max_steps}.")
        if gradient_clip is not None and gradient_clip <= 0:
            raise UserError(
                f"trainer.gradient_clip must be more than 0, or null for none, not {gradient_clip}."
            )
        if ema_decay is not None and not 0 <= ema_decay < 1:
            raise UserError(
                f"training.ema_decay must be at least 0 and below 1, or null, not {ema_decay}."
            )
        if accumulate < 1:
            raise UserError(f"trainer.accumulate must be at least 1, not {accumulate}.")
        self.automatic_optimization = False
        self.max_steps = max_steps
        self.accumulate = accumulate
        self.gradient_clip = gradient_clip
        self.step = 0
        self.ema = ExponentialMovingAverage(model, ema_decay) if ema_decay is not None else None
        self.log_every = 50
        self.run_dir: Path | None = None
        self.trackers: Sequence[Tracker] = ()
        self.latest: dict[str, float] = {}
        self._accumulated_batches = 0
        self._sums: dict[str, torch.Tensor] = {}
        self._num_summed: dict[str, int] = {}
        self._finite: torch.Tensor | None = None  # whether all gradients so far were
        self._num_warnings = 0

    # --- what a stage defines -------------------------------------------------------------------

    @abstractmethod
    def backward_losses(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Adds the gradients of one batch (through `backward`); returns numbers to log, by name."""

    @abstractmethod
    def to_saved(self) -> SavedModel:
        """The model as it would be exported now, EMA weights where there are any."""

    @property
    @abstractmethod
    def val_modes(self) -> Mapping[str, str]:
        """Of each number that validation reports, whether its `"min"` or its `"max"` is good."""

    # --- steps ----------------------------------------------------------------------------------

    @property
    def between_steps(self) -> bool:
        """Whether the last batch finished a step, so that the state is whole."""
        return self._accumulated_batches == 0

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """One batch; every `accumulate`-th makes a step."""
        self._remember(self.backward_losses(batch))
        self._accumulated_batches += 1
        if self._accumulated_batches < self.accumulate:
            return
        self._accumulated_batches = 0
        self.update()
        self.step += 1
        if self.step % self.log_every == 0 or self.step == 1:
            self._log_training()

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Adds the loss's gradient, averaged over the accumulated batches."""
        (loss / self.accumulate).backward(*args, **kwargs)

    @abstractmethod
    def update(self) -> None:
        """Steps the optimizers (through `step_optimizer`) and the EMA."""

    def step_optimizer(
        self,
        optimizer: Any,
        config: OptimizerConfig,
        parameters: Iterable[nn.Parameter],
        name: str,
        since: int = 0,
    ) -> None:
        """Sets the learning rate of this step, clips, steps and clears the gradients.

        The schedule begins at step `since`; `name` goes in front of the names of what is logged.
        """
        learning_rate = config.learning_rate_at(self.step - since, self.max_steps - since)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        parameters = [p for p in parameters if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self.gradient_clip is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.gradient_clip, norm)
        finite = norm.isfinite()
        self._finite = finite if self._finite is None else self._finite & finite
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self._remember({f"{name}gradient_norm": norm.detach()})
        self.latest[f"train/{name}learning_rate"] = learning_rate

    # --- reports --------------------------------------------------------------------------------

    def _remember(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach().float()
            self._num_summed[name] = self._num_summed.get(name, 0) + 1

    def recent(self, name: str) -> float:
        """The mean of a training number since its last report, else that report; NaN before any.

        It waits for the GPU.
        """
        if name in self._sums:
            return float(self._sums[name]) / self._num_summed[name]
        return self.latest.get(f"train/{name}", math.nan)

    def _log_training(self) -> None:
        """Reports the mean of each number since the last report (this rank's)."""
        means = {f"train/{name}": self.recent(name) for name in self._sums}
        self._sums, self._num_summed = {}, {}
        self.require_finite([name for name, mean in means.items() if not math.isfinite(mean)])
        means |= {f"train/{name}": value for name, value in self.training_metrics().items()}
        warnings = self.check_health(means)
        self._num_warnings += len(warnings)
        means["train/warnings"] = float(self._num_warnings)
        rates = {n: v for n, v in self.latest.items() if n.endswith("learning_rate")}
        self.report({**means, **rates})
        for warning in warnings:
            self.warn(warning)

    def require_finite(self, broken: Sequence[str] = ()) -> None:
        """Raises a `UserError` if a gradient, or one of the named numbers, was NaN or infinite.

        It is called before a checkpoint is written, too: the last one on disk stays a good one.
        """
        if not broken and (self._finite is None or bool(self._finite)):
            return
        raise UserError(
            f"{', '.join(broken) or 'a gradient'} became NaN or infinite before step {self.step}: "
            "the training has diverged and ends here; the checkpoints on disk are from before "
            "that. Go on from the last one (resume=RUN) with a smaller "
            "training.optimizer.learning_rate, or with trainer.precision=32-true."
        )

    def training_metrics(self) -> dict[str, float]:
        """More numbers to report beside the losses' means, by name; none unless overridden."""
        return {}

    def check_health(self, metrics: Mapping[str, float]) -> list[str]:
        """What is going wrong in training, in plain words; nothing unless overridden."""
        return []

    def warn(self, text: str) -> None:
        """Tells the user and the trackers of a trouble; training goes on."""
        if self.global_rank == 0:
            log.warning("warning, step %d: %s", self.step, text)
        for tracker in self.trackers:
            tracker.alert(text, self.step)

    def report(self, metrics: Mapping[str, float]) -> None:
        """Sends numbers to the trackers and keeps them in `latest`."""
        self.latest.update(metrics)
        for tracker in self.trackers:
            tracker.metrics(metrics, self.step)

    @property
    def val_metrics(self) -> dict[str, float]:
        """The numbers of the latest validation."""
        return {name: value for name, value in self.latest.items() if name.startswith("val/")}

    def report_image(self, name: str, image: Image.Image) -> None:
        """Writes a picture into the run directory's `grids/` and sends it to the trackers."""
        if self.run_dir is None or self.global_rank != 0:
            return
        path = self.run_dir / "grids" / f"{name}_{self.step:07d}.png"
        try:
            path.parent.mkdir(exist_ok=True)
            image.save(path)
        except OSError as error:
            self.print(f"warning: {path} cannot be written ({error}); training goes on.")
        for tracker in self.trackers:
            tracker.image(f"val/{name}", image, self.step)

    # --- checkpoints ----------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the finished model, the step and the random state; drops Lightning's loop counters.

        Data order is a function of `step`, so the loops start afresh in a resumed run.
        """
        checkpoint["model"] = checkpoint_entry(self.to_saved())
        checkpoint["step"] = self.step
        checkpoint["latest"] = self.latest
        checkpoint["num_warnings"] = self._num_warnings
        checkpoint["random_state"] = {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(self.device) if self._on_gpu else None,
        }
        checkpoint.pop("loops", None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores the step; the random state follows when the training starts."""
        self.step = checkpoint["step"]
        self.latest = checkpoint["latest"]
        self._num_warnings = checkpoint["num_warnings"]
        self._random_state = checkpoint["random_state"]

    def on_fit_start(self) -> None:
        """Tells the data and the validation schedule where the run goes on."""
        num_batches = self.step * self.accumulate
        self.trainer.datamodule.start_batch = num_batches  # type: ignore[attr-defined]
        self.trainer.fit_loop.epoch_loop.batch_progress.total.ready = num_batches

    def on_train_start(self) -> None:
        """Goes on with the saved random numbers; several processes take new ones, each its own."""
        if self.trainer.world_size > 1:
            words = (torch.initial_seed(), self.global_rank, self.step)
            torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
        elif self.step > 0:
            torch.set_rng_state(self._random_state["cpu"])
            of_gpu = self._random_state["cuda"]
            if isinstance(of_gpu, list):  # of older runs: one of each GPU there was
                of_gpu = of_gpu[0] if of_gpu else None
            if self._on_gpu and of_gpu is not None:
                torch.cuda.set_rng_state(of_gpu, self.device)

    @property
    def _on_gpu(self) -> bool:
        return self.device.type == "cuda"
