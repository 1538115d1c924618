"""The discriminator with its losses and schedule."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import nn

from taming.discriminators import (
    Augmentation,
    DifferentiableAugmentation,
    PatchDiscriminator,
    frozen,
)
from taming.losses import ADVERSARIAL_LOSSES, LeCAM
from taming.runtime.dtypes import at_least_float32
from taming.training.optimizer import OptimizerConfig

__all__ = ["Adversary"]


class Adversary(nn.Module):
    """A discriminator with its losses, its optimizer settings and its schedule.

    The discriminator trains from step `start`. The generator uses it `warmup` steps later, with a
    weight that rises linearly over `ramp` steps. An untrained discriminator at full weight ruins a
    run.

    Args:
        discriminator: maps images to scores.
        optimizer: settings of the discriminator's optimizer.
        start: a step (integer), or a share of the training (fraction from 0 to 1).
        warmup: steps in which only the discriminator learns.
        ramp: steps over which the weight rises from 0 to `weight`.
        weight: weight of the generator's adversarial loss.
        adaptive: whether to multiply the weight by ‖∇L_rec‖ / ‖∇L_GAN‖ at the decoder's last layer.
        adaptive_every: steps between two measurements of that ratio.
        adaptive_max: upper limit of that ratio.
        loss: see `taming.losses.adversarial`.
        lecam_weight: weight of the LeCAM regularisation in the discriminator's loss.
        lecam_decay: decay of LeCAM's averages per batch.
        augmentation: see `DifferentiableAugmentation`; it applies to real and generated images.
    """

    def __init__(
        self,
        discriminator: PatchDiscriminator,
        *,
        optimizer: OptimizerConfig,
        start: Annotated[int, Ge(0)] | Annotated[float, Ge(0), Le(1)],
        warmup: Annotated[int, Ge(0)],
        ramp: Annotated[int, Ge(0)],
        weight: Annotated[float, Ge(0)],
        adaptive: bool,
        adaptive_every: Annotated[int, Ge(1)] = 1,
        adaptive_max: Annotated[float, Gt(0)] = 1e4,
        loss: Literal["hinge", "vanilla", "non_saturating"] = "hinge",
        lecam_weight: Annotated[float, Ge(0)] = 0.0,
        lecam_decay: Annotated[float, Ge(0), Lt(1)] = 0.99,
        augmentation: Sequence[Augmentation] | None = None,
    ) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.optimizer = optimizer
        self.start = start
        self.warmup = warmup
        self.ramp = ramp
        self.weight = weight
        self.adaptive = adaptive
        self.adaptive_every = adaptive_every
        self.adaptive_max = adaptive_max
        self.loss = ADVERSARIAL_LOSSES[loss]
        self.lecam_weight = lecam_weight
        # even at weight 0, because a run can be resumed with another weight
        self.lecam = LeCAM(lecam_decay)
        self.augmentation = DifferentiableAugmentation(augmentation)

    def settle_start(self, max_steps: int) -> None:
        """Converts a start that is a share of the training into a step."""
        if isinstance(self.start, float):
            self.start = round(self.start * max_steps)

    def trains_at(self, step: int) -> bool:
        """Returns whether the discriminator learns in the step after `step` completed steps."""
        return step >= self.start

    def generator_factor(self, step: int) -> float:
        """Returns the adversarial weight in that step, before the adaptive factor."""
        num_steps = step - self.start - self.warmup  # since the end of the warm-up
        if num_steps < 0:
            return 0.0
        return self.weight * min(1.0, (num_steps + 1) / max(1, self.ramp))

    def adapts_at(self, step: int) -> bool:
        """Returns whether the adaptive weight is measured in that step."""
        return (step - self.start - self.warmup) % self.adaptive_every == 0

    def generator_loss(self, reconstructions: torch.Tensor) -> torch.Tensor:
        """Returns the generator's loss; changes no state of the discriminator."""
        with frozen(self.discriminator):
            scores = self.discriminator(self.augmentation(reconstructions))
        return self.loss.generator(at_least_float32(scores))

    def discriminator_loss(
        self, images: torch.Tensor, reconstructions: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Returns `discriminator_loss` and its metrics; no gradient reaches the images.

        The loss includes LeCAM. `discriminator_accuracy` is the mean share of real scores above 0
        and fake scores below. `lecam_loss` is not weighted.
        """
        images = self.augmentation(images.detach())
        reconstructions = self.augmentation(reconstructions.detach())
        if self.discriminator.scores_images_independently:  # one pass is faster
            scores = at_least_float32(self.discriminator(torch.cat([images, reconstructions])))
            scores_real, scores_fake = scores.chunk(2)
        else:  # each with its own batch statistics, as in the paper's code
            scores_real = at_least_float32(self.discriminator(images))
            scores_fake = at_least_float32(self.discriminator(reconstructions))
        loss = self.loss.discriminator(scores_real, scores_fake)
        shares = (scores_real > 0).float().mean() + (scores_fake < 0).float().mean()
        metrics = {
            "scores_real": scores_real.mean(),
            "scores_fake": scores_fake.mean(),
            "discriminator_accuracy": shares / 2,
        }
        if self.lecam_weight > 0:
            metrics["lecam_loss"] = self.lecam(scores_real, scores_fake)
            loss = loss + self.lecam_weight * metrics["lecam_loss"]
        return {"discriminator_loss": loss, **metrics}
