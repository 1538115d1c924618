"""What both stages share: clipping, reports, checkpoints and a resume that is exact."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from taming.runtime.errors import UserError
from taming.runtime.process_group import mean_over_ranks
from taming.serialization import SavedModel, checkpoint_entry
from taming.training.optimizer import OptimizerConfig, build_optimizer

__all__ = ["Switch", "TrainedNetwork", "TrainingModule", "prefixed"]

Switch = bool | Literal["auto"]
"""`choose_execution` replaces `"auto"`; without that call it means False."""


@dataclass(frozen=True)
class TrainedNetwork:
    """A network to train, and the settings of its optimizer."""

    network: nn.Module
    optimizer: OptimizerConfig
    prefix: str = ""  # of its logged numbers, such as "discriminator_"
    start: int = 0  # finished steps before its first update


class TrainingModule(L.LightningModule):
    """A LightningModule that averages its reports over steps and resumes bit for bit.

    Attributes:
        channels_last: whether images and weights lie channel by channel in memory while training.
        compiled: whether the networks are compiled for training.
        report: the training metrics logged at this step; empty at steps without a report.
        val_metrics: the metrics of the latest validation.
        val_step: the step of that validation; None before the first.
        val_modes: whether `"min"` or `"max"` is best, for each metric that validation logs.
    """

    IN_PROGRESS_BAR: ClassVar[tuple[str, ...]] = ()
    val_modes: dict[str, str]

    def __init__(self) -> None:
        super().__init__()
        self.channels_last: Switch = False
        self.compiled: Switch = False
        self.report: dict[str, float] = {}
        self.val_metrics: dict[str, float] = {}
        self.val_step: int | None = None
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}
        self._latest: dict[str, float] = {}
        self._finite: torch.Tensor | None = None  # whether all gradients so far were
        self._resumed: dict[str, Any] | None = None

    def set_execution(self, *, channels_last: Switch, compile: Switch) -> None:
        """Sets memory format and compilation of the steps; `setup` compiles the networks."""
        self.channels_last, self.compiled = channels_last, compile
        if channels_last is True:
            self.to(memory_format=torch.channels_last)

    # --- what a stage defines -------------------------------------------------------------------

    @abstractmethod
    def trained_networks(self) -> list[TrainedNetwork]:
        """Returns what is trained; each network is clipped by itself."""

    @abstractmethod
    def compile_networks(self) -> None:
        """Compiles in place: names of weights, and so checkpoints, stay as they are."""

    @abstractmethod
    def saved_from(self, state: Mapping[str, torch.Tensor]) -> SavedModel:
        """Returns the model to export, with the weights of a module's or checkpoint's state."""

    def training_metrics(self) -> dict[str, float]:
        """Returns more metrics to report beside the means; none unless overridden."""
        return {}

    # --- optimizers -----------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Compiles the networks, and notes which weights are matrices: FSDP flattens them."""
        if self.compiled is True:
            self.compile_networks()
        for parameter in self.parameters():
            parameter.is_matrix = parameter.ndim > 1  # type: ignore[attr-defined]

    def configure_optimizers(self) -> Any:
        """Returns one AdamW over all networks, and a schedule for each parameter group."""
        groups, factors = [], []
        for trained in self.trained_networks():
            own = trained.optimizer.parameter_groups(trained.network, prefix=trained.prefix)
            groups += own
            factors += [self._schedule(trained)] * len(own)
        # with a gradient scaler, the fused kernel would hide the true gradients from clipping
        fused = self.scaler is None and all(t.optimizer.fused for t in self.trained_networks())
        optimizer = build_optimizer(groups, fused=fused)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _schedule(self, trained: TrainedNetwork) -> Callable[[int], float]:
        length = self.trainer.max_steps - trained.start
        return lambda step: trained.optimizer.factor(max(0, step - trained.start), length)

    @property
    def scaler(self) -> Any:
        """The gradient scaler of float16 training; None otherwise."""
        trainer = self._trainer
        return None if trainer is None else getattr(trainer.precision_plugin, "scaler", None)

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips each network by itself, and writes the training report of steps that have one.

        Lightning calls this once a step, right before the update: the gradient norms are known, and
        callbacks, whose `on_train_batch_end` runs before the module's, find the report there.
        """
        for trained in self.trained_networks():
            norm = self._clip(trained.network, gradient_clip_val or None, gradient_clip_algorithm)
            if norm is not None:
                finite = norm.isfinite()
                if self.scaler is not None:  # it skips steps whose gradients overflow
                    norm = norm.where(finite, 0.0)
                else:
                    self._finite = finite if self._finite is None else self._finite & finite
                self.remember({f"{trained.prefix}gradient_norm": norm})
        step = self.global_step + 1
        self.report = {}
        if step % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self._log_training(step)

    def _clip(
        self, network: nn.Module, limit: float | None, algorithm: str | None
    ) -> torch.Tensor | None:
        """Clips the gradients; returns their norm before, None where there are none."""
        model = self.trainer.model
        if isinstance(model, FullyShardedDataParallel):
            return model.clip_grad_norm_(math.inf if limit is None else limit)
        parameters = [p for p in network.parameters() if p.grad is not None]
        if not parameters:
            return None
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if limit is not None and algorithm == "value":
            nn.utils.clip_grad_value_(parameters, limit)
        elif limit is not None:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return norm.detach()

    # --- reports --------------------------------------------------------------------------------

    def remember(self, metrics: Mapping[str, torch.Tensor]) -> None:
        """Adds one batch's metrics to the means of the next report."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach().float()
            self._counts[name] = self._counts.get(name, 0) + 1

    def recent(self, name: str) -> float:
        """Returns a metric's mean over all ranks since the last report.

        If nothing is newer, it is the mean of that report.
        """
        if name not in self._sums:
            return self._latest.get(name, math.nan)
        return float(mean_over_ranks(self._sums[name] / self._counts[name]))

    def _log_training(self, step: int) -> None:
        """Logs the mean of each metric since the last report, over all ranks."""
        names = list(self._sums)
        means = torch.stack([self._sums[name] / self._counts[name] for name in names])
        report = dict(zip(names, mean_over_ranks(means).tolist(), strict=True))
        self._sums, self._counts, self._latest = {}, {}, report
        self.require_finite([name for name, mean in report.items() if not math.isfinite(mean)])
        report |= self.training_metrics()
        for group in self.trainer.optimizers[0].param_groups:
            report[f"{group['prefix']}learning_rate"] = group["lr"]
        self.report = report
        self.log("step", float(step))
        for name, value in report.items():  # on the CPU: the progress bar reads some every step
            self.log(f"train/{name}", torch.tensor(value), prog_bar=name in self.IN_PROGRESS_BAR)

    def log_validation(self, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of a validation, which are those of all ranks."""
        self.val_metrics = {f"val/{name}": float(value) for name, value in metrics.items()}
        self.val_step = self.global_step
        self.log_dict({**self.val_metrics, "step": float(self.global_step)})

    def require_finite(self, broken: list[str] | None = None) -> None:
        """Raises a `UserError` if a gradient, or one of the named metrics, was NaN or infinite."""
        if not broken and (self._finite is None or bool(self._finite)):
            return
        raise UserError(
            f"{', '.join(broken or ['a gradient'])} became NaN or infinite before step "
            f"{self.global_step + 1}: the training has diverged and ends here. Go on from its last "
            "checkpoint, which is from before that (resume=RUN), or begin anew if there is none "
            "yet. Use a smaller training.optimizer.learning_rate, or trainer.precision=32-true."
        )

    # --- checkpoints ----------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the model, reports and the random state; a diverged training is not saved."""
        self.require_finite()
        checkpoint["model"] = checkpoint_entry(self.saved_from(checkpoint["state_dict"]))
        checkpoint["val_metrics"], checkpoint["val_step"] = self.val_metrics, self.val_step
        checkpoint["since_report"] = {"sums": self._sums, "counts": self._counts}
        checkpoint["latest_report"] = self._latest
        checkpoint["random_state"] = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            checkpoint["random_state"]["cuda"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remembers the state to resume from; see `on_train_start`."""
        checkpoint.pop("loops", None)
        self.val_metrics = checkpoint["val_metrics"]
        self.val_step = checkpoint.get("val_step")  # unknown in older ones
        self._latest = checkpoint["latest_report"]
        self._resumed = {
            name: checkpoint[name] for name in ("global_step", "random_state", "since_report")
        }

    def on_train_start(self) -> None:
        """Restores step, random state and learning rates of a resumed run.

        Lightning's loops start afresh there: their own restart skips or repeats validations
        depending on the moment of the save.
        """
        resumed, self._resumed = self._resumed, None
        step = 0 if resumed is None else resumed["global_step"]
        if resumed is not None:
            sums, self._counts = resumed["since_report"]["sums"], resumed["since_report"]["counts"]
            self._sums = {name: value.to(self.device) for name, value in sums.items()}
            loop = self.trainer.fit_loop.epoch_loop
            loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
            loop.batch_progress.total.ready = step * self.trainer.accumulate_grad_batches
            loop._batches_that_stepped = step
            schedule: Any = self.lr_schedulers()  # with the rates of this session
            groups = schedule.optimizer.param_groups
            schedule.base_lrs = [group["initial_lr"] for group in groups]
            for group, factor in zip(groups, schedule.lr_lambdas, strict=True):
                group["lr"] = group["initial_lr"] * factor(step)
        if self.trainer.world_size > 1:
            words = (torch.initial_seed(), self.global_rank, step)
            torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
        elif resumed is not None:
            torch.set_rng_state(resumed["random_state"]["cpu"])
            if self.device.type == "cuda" and resumed["random_state"].get("cuda") is not None:
                torch.cuda.set_rng_state(resumed["random_state"]["cuda"], self.device)


def prefixed(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Returns the entries of one submodule, under the names they have there."""
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in state.items() if name.startswith(start)}
