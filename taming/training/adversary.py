"""The discriminator in training: when it learns, and when the generator listens to it."""

from collections.abc import Sequence

import torch
from torch import nn

from taming.discriminators import (
    DifferentiableAugmentation,
    PatchDiscriminator,
    frozen_statistics,
)
from taming.errors import UserError
from taming.losses import ADVERSARIAL_LOSSES, LeCAM
from taming.training.optimizer import OptimizerConfig

__all__ = ["Adversary"]


class Adversary(nn.Module):
    """A discriminator with its losses, its optimizer settings and its schedule.

    It trains from `start` on; the generator sees it after `warmup` more steps, with a weight that
    rises linearly over `ramp` steps. An untrained discriminator at full weight wrecks a run.

    Args:
        discriminator: images to scores.
        optimizer: of the discriminator.
        start: a step (int), or a fraction of the training (float below 1).
        warmup: steps in which only the discriminator learns.
        ramp: steps in which its weight rises from 0 to `weight`.
        weight: of the generator's adversarial loss.
        adaptive: multiply the weight by ‖∇L_rec‖ / ‖∇L_GAN‖ at the decoder's last layer.
        max_steps: of the training, for a start given as a fraction.
        adaptive_every: steps from one measurement of that quotient to the next.
        adaptive_max: upper bound of that quotient.
        loss: `"hinge"`, `"vanilla"` or `"non_saturating"` (see `taming.losses.adversarial`).
        lecam_weight: of the LeCAM regularisation in the discriminator's loss; 0: none.
        lecam_decay: of LeCAM's averages, per batch.
        augmentation: of all that the discriminator sees: names of `DifferentiableAugmentation`.
    """

    def __init__(
        self,
        discriminator: PatchDiscriminator,
        *,
        optimizer: OptimizerConfig,
        start: int | float,
        warmup: int,
        ramp: int,
        weight: float,
        adaptive: bool,
        max_steps: int,
        adaptive_every: int = 1,
        adaptive_max: float = 1e4,
        loss: str = "hinge",
        lecam_weight: float = 0.0,
        lecam_decay: float = 0.99,
        augmentation: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(start, float) and not 0 <= start <= 1:
            raise UserError(
                "adversary.start is a step (a whole number) or a fraction of the training between "
                f"0 and 1, not {start}."
            )
        if min(start, warmup, ramp, weight, lecam_weight) < 0:
            raise UserError(
                "adversary: start, warmup, ramp, weight and lecam_weight must not be negative."
            )
        if adaptive_every < 1:
            raise UserError(f"adversary.adaptive_every must be at least 1, not {adaptive_every}.")
        if adaptive_max <= 0:
            raise UserError(f"adversary.adaptive_max must be more than 0, not {adaptive_max}.")
        if loss not in ADVERSARIAL_LOSSES:
            raise UserError(
                f"adversary.loss is one of {', '.join(ADVERSARIAL_LOSSES)}, not {loss!r}."
            )
        if not 0 <= lecam_decay < 1:
            raise UserError(
                f"adversary.lecam_decay must be at least 0 and below 1, not {lecam_decay}."
            )
        self.discriminator = discriminator
        self.optimizer = optimizer
        self.start = round(start * max_steps) if isinstance(start, float) else start
        self.warmup = warmup
        self.ramp = ramp
        self.weight = weight
        self.adaptive = adaptive
        self.adaptive_every = adaptive_every
        self.adaptive_max = adaptive_max
        self.loss = ADVERSARIAL_LOSSES[loss]
        self.lecam_weight = lecam_weight
        # there at weight 0 too: a run can be resumed with another weight
        self.lecam = LeCAM(lecam_decay)
        self.augmentation = DifferentiableAugmentation(augmentation)

    def trains_at(self, step: int) -> bool:
        """Whether the discriminator learns in the step after `step` finished ones."""
        return step >= self.start

    def generator_factor(self, step: int) -> float:
        """The adversarial weight in the step after `step` finished ones, before adaptation."""
        since = step - self.start - self.warmup
        if since < 0:
            return 0.0
        return self.weight * min(1.0, (since + 1) / max(1, self.ramp))

    def adapts_at(self, step: int) -> bool:
        """Whether the adaptive weight is computed in the step after `step` finished ones."""
        return (step - self.start - self.warmup) % self.adaptive_every == 0

    def remarks(self, max_steps: int) -> list[str]:
        """What is unusual about the schedule for a training of so many steps, in plain words."""
        if self.start + self.warmup < max_steps:
            return []
        return [
            f"the generator first listens to the discriminator after step "
            f"{self.start + self.warmup}, {self.warmup} (adversary.warmup) after the "
            f"discriminator's start, and the training ends at step {max_steps}: it never will. Set "
            f"adversary.warmup={max_steps // 10} and adversary.ramp={max_steps // 5}, with "
            "adversary.start=0.25 or less; or leave it out with adversary=none."
        ]

    def generator_loss(self, reconstructions: torch.Tensor) -> torch.Tensor:
        """`(b c H W)` to a scalar; changes no state of the discriminator."""
        with frozen_statistics(self.discriminator):
            scores = self.discriminator(self.augmentation(reconstructions))
        return self.loss.generator(scores.float())

    def discriminator_loss(
        self, images: torch.Tensor, reconstructions: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Two `(b c H W)` to the discriminator's loss and what to watch; no gradient reaches them.

        Returns:
            `discriminator_loss`, LeCAM included; `scores_real` and `scores_fake`, their means;
            `discriminator_accuracy`, the mean share of real scores above and fake ones below 0;
            and with LeCAM `lecam_loss`, unweighted.
        """
        scores_real, scores_fake = self._scores(images.detach(), reconstructions.detach())
        loss = self.loss.discriminator(scores_real, scores_fake)
        right = (scores_real > 0).float().mean() + (scores_fake < 0).float().mean()
        numbers = {
            "scores_real": scores_real.mean(),
            "scores_fake": scores_fake.mean(),
            "discriminator_accuracy": right / 2,
        }
        if self.lecam_weight > 0:
            numbers["lecam_loss"] = self.lecam(scores_real, scores_fake)
            loss = loss + self.lecam_weight * numbers["lecam_loss"]
        return {"discriminator_loss": loss, **numbers}

    def _scores(
        self, images: torch.Tensor, reconstructions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        images, reconstructions = self.augmentation(images), self.augmentation(reconstructions)
        if self.discriminator.judges_images_alone:  # one pass is faster than two
            scores = self.discriminator(torch.cat([images, reconstructions])).float()
            scores_real, scores_fake = scores.chunk(2)
            return scores_real, scores_fake
        # as in the paper's code: each with its own batch statistics
        return self.discriminator(images).float(), self.discriminator(reconstructions).float()
