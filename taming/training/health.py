"""What can go wrong in a training, noticed while it can still be mended."""

import logging
import math
import statistics
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import lightning as L
from annotated_types import Ge, Gt, Le
from lightning.pytorch.loggers import WandbLogger

from taming.data.module import ImageDataModule
from taming.training.adversary import Adversary
from taming.training.module import TrainingModule
from taming.training.vqgan import VQGANTraining
from taming.vqgan import VQGAN

__all__ = ["HealthWatch", "OverfittingWatch", "unusual_data"]

log = logging.getLogger("taming")

AGAINST_COLLAPSE = {  # by kind of quantizer
    "vector": "Use model.quantizer.cosine=true with a codebook_dim of 8 to 16, "
    "model.quantizer.revive_after=100, or a smaller model.quantizer.codebook_size.",
    "gumbel": "Use a larger model.quantizer.kl_weight, a higher model.quantizer.temperature_end, "
    "or a smaller model.quantizer.codebook_size.",
    "finite_scalar": "Use fewer or smaller model.quantizer.levels.",
}
FROZEN = (
    "It stays as it is with finetune.mode=decoder, so these images can do with few of its codes; "
    "finetune.mode=new_codebook begins another for them."
)


class _Watch(L.Callback):
    """Tells the user and the trackers of a trouble; training goes on."""

    def __init__(self) -> None:
        self.num_warnings = 0

    def warn(self, trainer: L.Trainer, text: str) -> None:
        """Prints a warning, and raises an alert with Weights & Biases."""
        self.num_warnings += 1
        if not trainer.is_global_zero:
            return
        log.warning("warning, step %d: %s", trainer.global_step, text)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.alert(title=f"step {trainer.global_step}", text=text)

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to warn as an uninterrupted one."""
        return {name: getattr(self, name) for name in self.REMEMBERED}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there."""
        for name in self.REMEMBERED:
            setattr(self, name, state_dict[name])

    REMEMBERED: ClassVar[tuple[str, ...]] = ("num_warnings",)


class HealthWatch(_Watch):
    """Says in plain words what goes wrong in stage 1, and what to change.

    It looks at each report of training numbers. A warning comes after `patience` reports in a row
    with the same trouble, and again only once the trouble has been away.

    Args:
        min_codebook_usage: share of the codes in use below which the codebook is collapsing.
        max_discriminator_accuracy: above it the discriminator has won: it tells nearly every patch
            of a reconstruction from one of an image, and its gradient teaches little.
        min_adaptive_weight, max_adaptive_weight: outside them one of the two gradients that the
            adaptive weight balances has vanished.
        max_gradient_leap: how many times the median of the last twenty gradient norms is a leap.
        patience: reports in a row before it speaks; leaps of the gradient are told at once.
    """

    REMEMBERED = ("num_warnings", "in_a_row", "norms")

    def __init__(
        self,
        min_codebook_usage: Annotated[float, Ge(0), Le(1)] = 0.5,
        max_discriminator_accuracy: Annotated[float, Ge(0), Le(1)] = 0.95,
        min_adaptive_weight: float = 1e-3,
        max_adaptive_weight: float = 5e3,
        max_gradient_leap: Annotated[float, Gt(1)] = 30.0,
        patience: Annotated[int, Ge(1)] = 3,
    ) -> None:
        super().__init__()
        self.min_codebook_usage = min_codebook_usage
        self.max_discriminator_accuracy = max_discriminator_accuracy
        self.min_adaptive_weight = min_adaptive_weight
        self.max_adaptive_weight = max_adaptive_weight
        self.max_gradient_leap = max_gradient_leap
        self.patience = patience
        self.in_a_row: dict[str, int] = {}
        self.norms: list[float] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        """Looks at the numbers of a report, when there is one."""
        assert isinstance(pl_module, VQGANTraining)
        if not pl_module.report:
            return
        cure = AGAINST_COLLAPSE[pl_module.vqgan.config["quantizer"]["kind"]]
        for warning in self.check(pl_module.report, FROZEN if pl_module.frozen else cure):
            self.warn(trainer, warning)
        pl_module.log("train/warnings", float(self.num_warnings))

    def check(self, numbers: Mapping[str, float], against_collapse: str) -> list[str]:
        """Returns the warnings that are due for the numbers of a report."""
        warnings = (
            self._collapse(numbers, against_collapse),
            self._discriminator(numbers),
            self._adaptive_weight(numbers),
            self._gradient(numbers),
        )
        return [warning for warning in warnings if warning is not None]

    def _due(self, trouble: str, present: bool, patience: int) -> bool:
        """Counts reports in a row with a trouble; true when the warning is due."""
        self.in_a_row[trouble] = self.in_a_row.get(trouble, 0) + 1 if present else 0
        return self.in_a_row[trouble] == patience

    def _collapse(self, numbers: Mapping[str, float], cure: str) -> str | None:
        usage = numbers.get("codebook_usage")
        if usage is None or not self._due(
            "collapse", usage < self.min_codebook_usage, self.patience
        ):
            return None
        return (
            f"the codebook is collapsing: {usage:.1%} of the codes are in use (perplexity "
            f"{numbers['codebook_perplexity']:.1f}). {cure}"
        )

    def _discriminator(self, numbers: Mapping[str, float]) -> str | None:
        accuracy = numbers.get("discriminator_accuracy")
        if accuracy is None or "generator_loss" not in numbers:  # alone it may learn what it can
            return None
        if not self._due("won", accuracy > self.max_discriminator_accuracy, self.patience):
            return None
        return (
            f"the discriminator has won: it is right about {accuracy:.1%} of the patches. Lower "
            "adversary.optimizer.learning_rate, or add adversary.lecam_weight=0.001 or "
            "adversary.augmentation=[color,translation,cutout]; if reconstructions get worse, "
            "lower adversary.weight."
        )

    def _adaptive_weight(self, numbers: Mapping[str, float]) -> str | None:
        weight = numbers.get("adaptive_weight")
        if weight is None:
            return None
        inside = self.min_adaptive_weight <= weight <= self.max_adaptive_weight
        if not self._due("adaptive_weight", not inside, self.patience):
            return None
        vanished = "reconstruction loss" if weight < self.min_adaptive_weight else "discriminator"
        return (
            f"the adaptive weight is {weight:.2g}: the gradient of the {vanished} has all but "
            "vanished beside the other. Use a fixed one (adversary.adaptive=false with a small "
            "adversary.weight), or bound it with adversary.adaptive_max."
        )

    def _gradient(self, numbers: Mapping[str, float]) -> str | None:
        norm = numbers.get("gradient_norm")
        if norm is None:
            return None
        usual = statistics.median(self.norms) if len(self.norms) >= 5 else math.inf
        self.norms = [*self.norms[-19:], norm]
        if not self._due("gradient", norm > self.max_gradient_leap * usual, 1):
            return None
        return (
            f"the gradient norm leapt to {norm:.3g}, from {usual:.3g} before. If losses do not "
            "recover, go on from a checkpoint with a smaller training.optimizer.learning_rate or "
            "trainer.gradient_clip_val."
        )


class OverfittingWatch(_Watch):
    """Notices that validation gets worse while training gets better (stage 2).

    Args:
        patience: validations in a row above the best before it speaks.
    """

    REMEMBERED = (
        *("num_warnings", "best", "best_step", "train_at_best"),
        *("since_best", "spoken"),
    )

    def __init__(self, patience: Annotated[int, Ge(1)] = 3) -> None:
        super().__init__()
        self.patience = patience
        self.best, self.best_step, self.train_at_best = math.inf, 0, math.inf
        self.since_best, self.spoken = 0, False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Looks at a validation's loss and the training loss before it."""
        assert isinstance(pl_module, TrainingModule)
        val_loss = pl_module.val_metrics["val/loss"]
        train_loss = val_loss - pl_module.val_metrics["val/gap"]
        warning = self.check(trainer.global_step, train_loss, val_loss)
        if warning is not None:
            self.warn(trainer, warning)

    def check(self, step: int, train_loss: float, val_loss: float) -> str | None:
        """Takes a validation's two losses; returns the warning when it is time for it."""
        if val_loss < self.best:
            self.best, self.best_step, self.train_at_best = val_loss, step, train_loss
            self.since_best, self.spoken = 0, False
            return None
        self.since_best += 1
        if self.spoken or self.since_best < self.patience or not train_loss < self.train_at_best:
            return None
        self.spoken = True
        return (
            f"overfitting: since step {self.best_step} the validation loss has risen from "
            f"{self.best:.4f} to {val_loss:.4f} while the training loss fell from "
            f"{self.train_at_best:.4f} to {train_loss:.4f}. best.ckpt keeps step {self.best_step}; "
            "training longer will not help. More images, more views (num_views, with crops and "
            "flips in data), more dropout (model.dropout) or a smaller model will."
        )


def unusual_data(data: ImageDataModule, vqgan: VQGAN) -> list[str]:
    """What is unusual about the data for this model, in plain words, before the training starts."""
    num_images = len(data.train_dataset)
    height, width = vqgan.grid_size
    found = []
    if num_images < data.batch_size:
        found.append(
            f"{num_images} training images make less than a batch of {data.batch_size}: each is in "
            "a batch more than once. Expect the model to learn these images by heart."
        )
    if num_images * height * width < vqgan.codebook_size:
        found.append(
            f"the training images have {num_images * height * width} latents in all, fewer than "
            f"the {vqgan.codebook_size} codes: codebook usage will stay below "
            f"{num_images * height * width / vqgan.codebook_size:.0%}. A "
            "model.quantizer.codebook_size of at most a tenth of the latents is sensible."
        )
    attention = vqgan.config["attention_resolutions"]
    if attention and not set(attention) & set(vqgan.level_heights):
        found.append(
            f"model.attention_resolutions={attention} gives no level attention: they are of "
            f"heights {', '.join(map(str, vqgan.level_heights))}."
        )
    looked_at = [data.train_dataset[i]["images"] for i in range(min(16, num_images))]
    if all((image - image[:, :1, :1]).abs().max() < 1e-3 for image in looked_at):
        found.append(
            f"the first {len(looked_at)} training images are each of a single colour: there is "
            "little to learn. Is this the right data?"
        )
    return found


def unusual_schedule(adversary: Adversary | None, max_steps: int) -> list[str]:
    """Returns what is unusual about the discriminator's schedule, in plain words."""
    if adversary is None:
        return []
    adversary.settle_start(max_steps)
    heard = int(adversary.start) + adversary.warmup
    if heard < max_steps:
        return []
    return [
        f"the generator first listens to the discriminator after step {heard}, {adversary.warmup} "
        "(adversary.warmup) after the discriminator's start, and the training ends at step "
        f"{max_steps}: it never will. Set adversary.warmup={max_steps // 10} and "
        f"adversary.ramp={max_steps // 5}, with adversary.start=0.25 or less; or leave it out with "
        "adversary=none."
    ]
