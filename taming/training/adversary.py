"""The discriminator in training: when it learns, and when the generator listens to it."""

import torch
from torch import nn

from taming.discriminators import PatchDiscriminator, frozen_statistics
from taming.errors import UserError
from taming.losses import hinge_discriminator_loss, hinge_generator_loss
from taming.training.optimizer import OptimizerConfig

__all__ = ["Adversary"]


class Adversary(nn.Module):
    """A discriminator with its optimizer settings and its schedule.

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
    ) -> None:
        super().__init__()
        if isinstance(start, float) and not 0 <= start <= 1:
            raise UserError(
                "adversary.start is a step (a whole number) or a fraction of the training between "
                f"0 and 1, not {start}."
            )
        if min(start, warmup, ramp, weight) < 0:
            raise UserError("adversary: start, warmup, ramp and weight must not be negative.")
        self.discriminator = discriminator
        self.optimizer = optimizer
        self.start = round(start * max_steps) if isinstance(start, float) else start
        self.warmup = warmup
        self.ramp = ramp
        self.weight = weight
        self.adaptive = adaptive
        self.adaptive_every = adaptive_every
        self.adaptive_max = adaptive_max

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

    def generator_loss(self, reconstructions: torch.Tensor) -> torch.Tensor:
        """`(b c H W)` to a scalar; changes no state of the discriminator."""
        with frozen_statistics(self.discriminator):
            return hinge_generator_loss(self.discriminator(reconstructions).float())

    def discriminator_loss(
        self, images: torch.Tensor, reconstructions: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Two `(b c H W)` without gradient to the discriminator's loss and its mean scores."""
        scores_real = self.discriminator(images).float()
        scores_fake = self.discriminator(reconstructions).float()
        return {
            "discriminator_loss": hinge_discriminator_loss(scores_real, scores_fake),
            "scores_real": scores_real.mean(),
            "scores_fake": scores_fake.mean(),
        }
