"""Early warnings when training goes wrong."""

import logging
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import lightning as L
from annotated_types import Ge, Gt, Le
from lightning.pytorch.loggers import WandbLogger

from taming.data.module import ImageDataModule
from taming.tokenizer import VQGAN
from taming.training.adversary import Adversary
from taming.training.module import TrainingModule
from taming.training.vqgan import VQGANTraining

__all__ = ["HealthWatch", "OverfittingWatch", "unusual_data", "unusual_schedule"]

log = logging.getLogger("taming")

FROZEN_CODEBOOK_ADVICE = (
    "finetune.mode=decoder freezes the codebook, and these images need few of its codes. Use "
    "finetune.mode=new_codebook to train a new one."
)


def warn(trainer: L.Trainer, text: str) -> None:
    """Logs a warning, and sends an alert with Weights & Biases."""
    if not trainer.is_global_zero:
        return
    log.warning("warning, step %d: %s", trainer.global_step, text)
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.alert(title=f"step {trainer.global_step}", text=text)


class _Watch(L.Callback):
    """A callback that keeps the attributes named in `STATE` when a run is resumed."""

    STATE: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.STATE}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update(state_dict)


class HealthWatch(_Watch):
    """Warns when stage 1 goes wrong, and says what to change.

    It checks each report of training metrics and warns after `patience` reports in a row with the
    same problem. It repeats a warning only if the problem disappeared in between.

    Args:
        min_codebook_usage: share of the codes in use below which the codebook is collapsing.
        max_discriminator_accuracy: accuracy above which the discriminator has won. Its gradient
            teaches little once it recognises nearly every patch of a reconstruction.
        min_adaptive_weight, max_adaptive_weight: outside these limits, one of the two gradients
            that the adaptive weight balances has vanished.
        max_gradient_leap: multiple of the median of the last twenty gradient norms that is a leap.
        patience: reports in a row before a warning; a leap of the gradient gives one at once.
    """

    STATE = ("num_warnings", "in_a_row", "norms")

    def __init__(  # Hydra would turn a callback that is a dataclass into a dictionary
        self,
        min_codebook_usage: Annotated[float, Ge(0), Le(1)] = 0.5,
        max_discriminator_accuracy: Annotated[float, Ge(0), Le(1)] = 0.95,
        min_adaptive_weight: float = 1e-3,
        max_adaptive_weight: float = 5e3,
        max_gradient_leap: Annotated[float, Gt(1)] = 30.0,
        patience: Annotated[int, Ge(1)] = 3,
    ) -> None:
        self.min_codebook_usage = min_codebook_usage
        self.max_discriminator_accuracy = max_discriminator_accuracy
        self.min_adaptive_weight = min_adaptive_weight
        self.max_adaptive_weight = max_adaptive_weight
        self.max_gradient_leap = max_gradient_leap
        self.patience = patience
        self.num_warnings = 0
        self.in_a_row: dict[str, int] = {}  # reports, by problem
        self.norms: list[float] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        assert isinstance(pl_module, VQGANTraining)
        if not pl_module.report:
            return
        advice = FROZEN_CODEBOOK_ADVICE if pl_module.frozen else pl_module.vqgan.quantizer.advice
        for warning in self.check(pl_module.report, advice):
            self.num_warnings += 1
            warn(trainer, warning)
        pl_module.log_number("train/warnings", self.num_warnings)

    def check(self, metrics: Mapping[str, float], advice: str) -> list[str]:
        """Returns the warnings for a report; `advice` is the quantizer's against a collapse."""
        due = []
        for name, present, warning in self._problems(metrics, advice):
            self.in_a_row[name] = self.in_a_row.get(name, 0) + 1 if present else 0
            if self.in_a_row[name] == (1 if name == "gradient" else self.patience):
                due.append(warning)
        return due

    def _problems(
        self, metrics: Mapping[str, float], advice: str
    ) -> Iterator[tuple[str, bool, str]]:
        """Yields name, presence and warning of each problem that the metrics can show."""
        if "codebook_usage" in metrics:
            usage, perplexity = metrics["codebook_usage"], metrics["codebook_perplexity"]
            yield (
                "collapse",
                usage < self.min_codebook_usage,
                f"the codebook is collapsing: {usage:.1%} of the codes are in use (perplexity "
                f"{perplexity:.1f}). {advice}",
            )
        if "generator_loss" in metrics:  # before that, a high accuracy is fine
            accuracy = metrics["discriminator_accuracy"]
            yield (
                "won",
                accuracy > self.max_discriminator_accuracy,
                f"the discriminator has won: it classifies {accuracy:.1%} of the patches "
                "correctly. Lower adversary.optimizer.learning_rate, or add "
                "adversary.lecam_weight=0.001 or "
                "adversary.augmentation=[color,translation,cutout]. If reconstructions get worse, "
                "lower adversary.weight.",
            )
        if "adaptive_weight" in metrics:
            weight = metrics["adaptive_weight"]
            low = weight < self.min_adaptive_weight
            yield (
                "adaptive_weight",
                low or weight > self.max_adaptive_weight,
                f"the adaptive weight is {weight:.2g}: the gradient of the "
                f"{'reconstruction loss' if low else 'discriminator'} has almost vanished. Use a "
                "fixed weight (adversary.adaptive=false with a small adversary.weight), or set "
                "adversary.adaptive_max.",
            )
        norm = metrics["gradient_norm"]
        usual = statistics.median(self.norms) if len(self.norms) >= 5 else math.inf
        self.norms = [*self.norms[-19:], norm]
        yield (
            "gradient",
            norm > self.max_gradient_leap * usual,
            f"the gradient norm leapt from {usual:.3g} to {norm:.3g}. If losses do not recover, "
            "resume from a checkpoint with a smaller training.optimizer.learning_rate or "
            "trainer.gradient_clip_val.",
        )


class OverfittingWatch(_Watch):
    """Warns when validation gets worse while training gets better (stage 2).

    The warning comes after `patience` validations in a row above the best.
    """

    STATE = ("best", "best_step", "train_at_best", "since_best", "has_warned")

    def __init__(self, patience: Annotated[int, Ge(1)] = 3) -> None:
        self.patience = patience
        self.best, self.best_step, self.train_at_best = math.inf, 0, math.inf
        self.since_best, self.has_warned = 0, False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        val_loss = pl_module.val_metrics["val/loss"]
        train_loss = val_loss - pl_module.val_metrics["val/gap"]
        warning = self.check(trainer.global_step, train_loss, val_loss)
        if warning is not None:
            warn(trainer, warning)

    def check(self, step: int, train_loss: float, val_loss: float) -> str | None:
        if val_loss < self.best:
            self.best, self.best_step, self.train_at_best = val_loss, step, train_loss
            self.since_best, self.has_warned = 0, False
            return None
        self.since_best += 1
        is_overfitting = self.since_best >= self.patience and train_loss < self.train_at_best
        if self.has_warned or not is_overfitting:
            return None
        self.has_warned = True
        return (
            f"overfitting: since step {self.best_step} the validation loss has risen from "
            f"{self.best:.4f} to {val_loss:.4f} while the training loss fell from "
            f"{self.train_at_best:.4f} to {train_loss:.4f}. best.ckpt keeps step {self.best_step}. "
            "Training longer will not help. Use more images, more views (tokens.num_views, with "
            "crops and flips in data), more dropout (model.dropout) or a smaller model."
        )


def unusual_data(data: ImageDataModule, vqgan: VQGAN) -> list[str]:
    """Returns notes on unusual data for this model."""
    num_images = len(data.train_dataset)
    num_latents = num_images * math.prod(vqgan.grid_size)
    notes = []
    if num_images < data.batch_size:
        notes.append(
            f"{num_images} training images are fewer than a batch of {data.batch_size}, so a batch "
            "repeats images. Expect the model to memorise them."
        )
    if num_latents < vqgan.codebook_size:
        notes.append(
            f"the training images have {num_latents} latents in all, fewer than the "
            f"{vqgan.codebook_size} codes, so codebook usage will stay below "
            f"{num_latents / vqgan.codebook_size:.0%}. Set model.quantizer.codebook_size to at "
            "most a tenth of the latents."
        )
    attention = vqgan.config["attention_resolutions"]
    if attention and not set(attention) & set(vqgan.level_heights):
        notes.append(
            f"model.attention_resolutions={attention} matches no level. The levels have the "
            f"heights {', '.join(map(str, vqgan.level_heights))}."
        )
    first = [data.train_dataset[i]["images"] for i in range(min(16, num_images))]
    if all((image - image[:, :1, :1]).abs().max() < 1e-3 for image in first):
        notes.append(
            f"each of the first {len(first)} training images has a single colour. Check the data."
        )
    return notes


def unusual_schedule(adversary: Adversary | None, max_steps: int) -> list[str]:
    """Returns notes on an unusual schedule of the discriminator."""
    if adversary is None:
        return []
    adversary.settle_start(max_steps)
    first_step = int(adversary.start) + adversary.warmup
    if first_step < max_steps:
        return []
    return [
        "the discriminator never influences the generator: it would after step "
        f"{first_step} (adversary.start + adversary.warmup), but the training ends at step "
        f"{max_steps}. Set adversary.warmup={max_steps // 10} and adversary.ramp={max_steps // 5} "
        "with adversary.start=0.25 or less, or leave the discriminator out with adversary=none."
    ]
