"""The part of a LightningModule that both stages share: clipping, metrics, exact resuming."""

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
from taming.training.saved_paths import confine_paths

__all__ = ["Switch", "TrainedNetwork", "TrainingModule", "submodule_state"]

Switch = bool | Literal["auto"]
"""`choose_execution` replaces `"auto"`; without that call it means False."""


@dataclass(frozen=True)
class TrainedNetwork:
    """A network to train, and the settings of its optimizer."""

    network: nn.Module
    optimizer: OptimizerConfig
    prefix: str = ""  # of its logged metrics, such as "discriminator_"
    start: int = 0  # completed steps before its first update


class TrainingModule(L.LightningModule):
    """A LightningModule that averages its metrics over steps and resumes bit for bit.

    Attributes:
        channels_last: whether images and weights use the channels-last memory format.
        compiled: whether the networks are compiled for training.
        report: the training metrics logged at this step; empty at steps without a report.
        val_metrics: the metrics of the latest validation.
        val_step: the step of that validation; None before the first.
        val_modes: `"min"` or `"max"`, whichever is best, for each metric of a validation.
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
        self._sums: dict[str, torch.Tensor] = {}  # of metrics since the latest report
        self._counts: dict[str, int] = {}
        self._latest_means: dict[str, float] = {}  # of the latest report
        self._gradient_norms: list[torch.Tensor | None] = []  # one per network
        self._all_finite: torch.Tensor | None = None  # whether all gradients so far were
        self._resumed_state: dict[str, Any] | None = None

    def set_execution(self, *, channels_last: Switch, compile: Switch) -> None:
        """Sets memory format and compilation of the steps; `setup` compiles the networks."""
        self.channels_last, self.compiled = channels_last, compile
        if channels_last is True:
            self.to(memory_format=torch.channels_last)

    # --- what a stage defines -------------------------------------------------------------------

    @abstractmethod
    def trained_networks(self) -> list[TrainedNetwork]:
        """Returns the networks to train; the gradients of each are clipped separately."""

    @abstractmethod
    def compile_networks(self) -> None:
        """Compiles the networks in place, so that weights and checkpoints keep their names."""

    @abstractmethod
    def to_saved(self, state: Mapping[str, torch.Tensor]) -> SavedModel:
        """Returns the model to export, with weights from a module's or checkpoint's state."""

    def training_metrics(self) -> dict[str, float]:
        """Returns metrics to report in addition to the means."""
        return {}

    # --- optimizer ------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Compiles the networks, and marks the matrices among the weights: FSDP flattens them."""
        if self.compiled is True:
            self.compile_networks()
        for parameter in self.parameters():
            parameter.is_matrix = parameter.ndim > 1  # type: ignore[attr-defined]

    def configure_optimizers(self) -> Any:
        """Returns one AdamW over all networks, with a schedule for each parameter group."""
        groups, factors = [], []
        for trained in self.trained_networks():
            network_groups = trained.optimizer.parameter_groups(
                trained.network, prefix=trained.prefix
            )
            groups += network_groups
            factors += [self._schedule(trained)] * len(network_groups)
        # with a gradient scaler, the fused kernel would hide the true gradients from clipping
        fused = self.scaler is None and all(t.optimizer.fused for t in self.trained_networks())
        optimizer = build_optimizer(groups, fused=fused)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _schedule(self, trained: TrainedNetwork) -> Callable[[int], float]:
        num_updates = self.trainer.max_steps - trained.start
        return lambda step: trained.optimizer.factor(max(0, step - trained.start), num_updates)

    @property
    def scaler(self) -> Any:
        """The gradient scaler of float16 training; None otherwise."""
        trainer = self._trainer
        return None if trainer is None else getattr(trainer.precision_plugin, "scaler", None)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Measures the gradients, and logs the training metrics every `log_every_n_steps`.

        Callbacks find the metrics in `report`. Their `on_train_batch_end` runs before the module's,
        so logging there would be too late.
        """
        self._measure_gradients()
        self.report = {}
        if (self.global_step + 1) % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self._log_training()

    def _measure_gradients(self) -> None:
        """Adds the gradient norm of each network to its metrics."""
        self._gradient_norms = []
        for trained in self.trained_networks():
            norm = self._gradient_norm(trained.network)
            self._gradient_norms.append(norm)
            if norm is None:
                continue
            finite = norm.isfinite()
            if self.scaler is not None:  # it skips steps with infinite gradients
                norm = norm.where(finite, 0.0)
            else:
                self._all_finite = finite if self._all_finite is None else self._all_finite & finite
            self.remember({f"{trained.prefix}gradient_norm": norm})

    def _gradient_norm(self, network: nn.Module) -> torch.Tensor | None:
        model = self.trainer.model
        if isinstance(model, FullyShardedDataParallel):
            return model.clip_grad_norm_(math.inf)  # measures, and clips nothing
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        return nn.utils.get_total_norm(gradients) if gradients else None

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips the gradients of each network separately."""
        if not gradient_clip_val:
            return
        for trained, norm in zip(self.trained_networks(), self._gradient_norms, strict=True):
            parameters = [p for p in trained.network.parameters() if p.grad is not None]
            if gradient_clip_algorithm == "value":
                nn.utils.clip_grad_value_(parameters, gradient_clip_val)
            elif norm is not None:
                nn.utils.clip_grads_with_norm_(parameters, gradient_clip_val, norm)

    # --- metrics --------------------------------------------------------------------------------

    def remember(self, metrics: Mapping[str, torch.Tensor]) -> None:
        """Adds one batch's metrics to the means of the next report."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach().float()
            self._counts[name] = self._counts.get(name, 0) + 1

    def recent_mean(self, name: str) -> float:
        """Returns a metric's mean over all ranks since the latest report, or of that report."""
        if name not in self._sums:
            return self._latest_means.get(name, math.nan)
        return float(mean_over_ranks(self._sums[name] / self._counts[name]))

    def _log_training(self) -> None:
        """Logs the mean of each metric since the latest report, over all ranks."""
        names = list(self._sums)
        means = torch.stack([self._sums[name] / self._counts[name] for name in names])
        self._latest_means = dict(zip(names, mean_over_ranks(means).tolist(), strict=True))
        self._sums, self._counts = {}, {}
        self.require_finite(self._latest_means)
        rates = {
            f"{group['prefix']}learning_rate": group["lr"]
            for group in self.trainer.optimizers[0].param_groups
        }
        self.report = {**self._latest_means, **self.training_metrics(), **rates}
        self.log_number("step", self.global_step + 1)
        for name, value in self.report.items():
            self.log_number(f"train/{name}", value, prog_bar=name in self.IN_PROGRESS_BAR)

    def log_number(self, name: str, value: float, **options: Any) -> None:
        """Logs a number. Lightning would copy it to the GPU, and read it back from there."""
        self.log(name, torch.tensor(float(value)), **options)

    def log_validation(self, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of a validation, which every rank has computed over all ranks."""
        self.val_metrics = {f"val/{name}": float(value) for name, value in metrics.items()}
        self.val_step = self.global_step
        for name, value in {**self.val_metrics, "step": self.global_step}.items():
            self.log_number(name, value)

    def require_finite(self, means: Mapping[str, float] | None = None) -> None:
        """Raises a `UserError` if a gradient so far, or one of the means, is NaN or infinite."""
        diverged = [name for name, mean in (means or {}).items() if not math.isfinite(mean)]
        if not diverged and self._all_finite is not None and not self._all_finite:
            diverged = ["a gradient"]
        if diverged:
            raise UserError(
                f"{', '.join(diverged)} became NaN or infinite before step {self.global_step + 1}. "
                "The training has diverged and ends here. Resume from its last checkpoint "
                "(resume=RUN), which is from before that, or start again. Use a smaller "
                "training.optimizer.learning_rate, or trainer.precision=32-true."
            )

    # --- checkpoints ----------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the model, the metrics and the random state, unless the training has diverged."""
        self.require_finite()
        checkpoint["model"] = checkpoint_entry(self.to_saved(checkpoint["state_dict"]))
        checkpoint["val_metrics"], checkpoint["val_step"] = self.val_metrics, self.val_step
        checkpoint["since_report"] = {"sums": self._sums, "counts": self._counts}
        checkpoint["latest_report"] = self._latest_means
        checkpoint["random_state"] = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            checkpoint["random_state"]["cuda"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the state that `on_train_start` restores."""
        checkpoint.pop("loops", None)  # see `_restore_counters`
        confine_paths(checkpoint["callbacks"], self.trainer.callbacks)  # type: ignore[attr-defined]
        self.val_metrics, self.val_step = checkpoint["val_metrics"], checkpoint["val_step"]
        self._latest_means = checkpoint["latest_report"]
        self._resumed_state = {
            name: checkpoint[name] for name in ("global_step", "random_state", "since_report")
        }

    def on_train_start(self) -> None:
        """Restores counters, learning rates and random state of a resumed run."""
        state, self._resumed_state = self._resumed_state, None
        step = 0 if state is None else state["global_step"]
        if state is not None:
            sums, self._counts = state["since_report"]["sums"], state["since_report"]["counts"]
            self._sums = {name: value.to(self.device) for name, value in sums.items()}
            self._restore_counters(step)
            self._restore_learning_rates(step)
        if self.trainer.world_size > 1:
            words = (torch.initial_seed(), self.global_rank, step)
            torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
        elif state is not None:
            torch.set_rng_state(state["random_state"]["cpu"])
            if self.device.type == "cuda" and "cuda" in state["random_state"]:
                torch.cuda.set_rng_state(state["random_state"]["cuda"], self.device)

    def _restore_counters(self, step: int) -> None:
        """Sets the counters of Lightning's loops, as after `step` steps.

        Lightning would restore whole loops, and then skip or repeat a validation depending on the
        moment of the save.
        """
        loop = self.trainer.fit_loop.epoch_loop
        loop.on_load_checkpoint({"_batches_that_stepped": step})  # the interval of logging
        loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
        loop.batch_progress.total.ready = step * self.trainer.accumulate_grad_batches

    def _restore_learning_rates(self, step: int) -> None:
        """Sets the learning rates of this session's settings."""
        schedule: Any = self.lr_schedulers()
        groups = schedule.optimizer.param_groups
        schedule.base_lrs = [group["initial_lr"] for group in groups]
        for group, factor in zip(groups, schedule.lr_lambdas, strict=True):
            group["lr"] = group["initial_lr"] * factor(step)


def submodule_state(state: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """Returns the state of one submodule from the state of a whole module."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)
    }
