"""What can go wrong in a training, noticed while it can still be mended."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taming.data import ImageDataModule
from taming.evaluation import CodebookUsage
from taming.quantizers import QuantizerOutput
from taming.vqgan import VQGAN

__all__ = ["CodebookWindow", "HealthWatch", "OverfittingWatch", "unusual_data"]

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


class CodebookWindow:
    """Codebook usage and perplexity over the newest training batches.

    A window ends when it has seen eight latents a code: were all codes equally likely, 1 − e⁻⁸ =
    99.97 % of them would be in it. Usage over a single batch would be small for any codebook.
    """

    LATENTS_PER_CODE = 8

    def __init__(self, codebook_size: int) -> None:
        self.usage = CodebookUsage(codebook_size)
        self.capacity = self.LATENTS_PER_CODE * codebook_size
        self.num_latents = 0

    def update(self, output: QuantizerOutput) -> None:
        """Adds a batch."""
        self.usage.to(output.code_counts.device).update(output.code_counts)
        self.num_latents += output.indices.numel()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with this window."""
        return {"counts": self.usage.counts, "num_latents": self.num_latents}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self.usage.reset()
        self.usage.counts = state["counts"].clone()
        self.num_latents = state["num_latents"]

    def compute_if_full(self) -> dict[str, float]:
        """The two numbers, of all ranks, and a new window; nothing if this one saw too little."""
        if self.num_latents < self.capacity:
            return {}
        metrics = {name: float(value) for name, value in self.usage.compute().items()}
        self.usage.reset()
        self.num_latents = 0
        return metrics


@dataclass
class HealthWatch:
    """Says in plain words what goes wrong in stage 1, and what to change.

    It is shown each report of training numbers. A warning comes after `patience` reports in a row
    with the same trouble, and again only once the trouble has been away.

    Attributes:
        min_codebook_usage: share of the codes in use below which the codebook is collapsing.
        max_discriminator_accuracy: above it the discriminator has won: it tells nearly every patch
            of a reconstruction from one of an image, and its gradient teaches little.
        min_adaptive_weight, max_adaptive_weight: outside them one of the two gradients that the
            adaptive weight balances has vanished.
        max_gradient_leap: gradient norms this many times the median of the last twenty.
        patience: reports in a row before it speaks; leaps of the gradient are told at once.
    """

    min_codebook_usage: float = 0.5
    max_discriminator_accuracy: float = 0.95
    min_adaptive_weight: float = 1e-3
    max_adaptive_weight: float = 5e3
    max_gradient_leap: float = 30.0
    patience: int = 3
    _in_a_row: dict[str, int] = field(default_factory=dict, init=False)
    _norms: list[float] = field(default_factory=list, init=False)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to warn as an uninterrupted one."""
        return {"in_a_row": self._in_a_row, "norms": self._norms}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self._in_a_row, self._norms = dict(state["in_a_row"]), list(state["norms"])

    def check(
        self, metrics: Mapping[str, float], *, quantizer: str = "vector", frozen: bool = False
    ) -> list[str]:
        """The warnings that are due.

        Args:
            metrics: the numbers of a report (`train/…`).
            quantizer: its kind: what helps against a collapse depends on it.
            frozen: whether the codebook is left as it is.
        """
        numbers = {name.removeprefix("train/"): value for name, value in metrics.items()}
        warnings = (
            self._collapse(numbers, FROZEN if frozen else AGAINST_COLLAPSE[quantizer]),
            self._discriminator(numbers),
            self._adaptive_weight(numbers),
            self._gradient(numbers),
        )
        return [warning for warning in warnings if warning is not None]

    def _due(self, trouble: str, present: bool, patience: int) -> bool:
        """Counts reports in a row with a trouble; true when the warning is due."""
        self._in_a_row[trouble] = self._in_a_row.get(trouble, 0) + 1 if present else 0
        return self._in_a_row[trouble] == patience

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
        usual = statistics.median(self._norms) if len(self._norms) >= 5 else math.inf
        self._norms = [*self._norms[-19:], norm]
        if not self._due("gradient", norm > self.max_gradient_leap * usual, 1):
            return None
        return (
            f"the gradient norm leapt to {norm:.3g}, from {usual:.3g} before. If losses do not "
            "recover, go on from a checkpoint with a smaller training.optimizer.learning_rate or "
            "trainer.gradient_clip."
        )


@dataclass
class OverfittingWatch:
    """Notices that validation gets worse while training gets better.

    Attributes:
        patience: validations in a row above the best before it speaks.
        best, best_step, train_at_best: the best validation loss, its step, the training loss then.
        since_best: validations since.
        spoken: whether it has spoken since.
    """

    patience: int
    best: float = math.inf
    best_step: int = 0
    train_at_best: float = math.inf
    since_best: int = 0
    spoken: bool = False

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there, with its own patience."""
        self.best, self.best_step = state["best"], state["best_step"]
        self.train_at_best, self.since_best = state["train_at_best"], state["since_best"]
        self.spoken = state.get("spoken", self.since_best >= state["patience"])  # older runs

    def update(self, step: int, train_loss: float, val_loss: float) -> str | None:
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
