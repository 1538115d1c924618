"""Stage 1: training a VQGAN (Esser et al. 2021, §3.1)."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn
from torchmetrics import Metric

from taming.errors import UserError
from taming.losses import adaptive_weight, cross_entropy_loss, l1_loss, l2_loss
from taming.pictures import as_palette, reconstruction_grid
from taming.ranks import mean_over_ranks
from taming.serialization import SavedModel
from taming.training.adversary import Adversary
from taming.training.health import CodebookWindow, HealthWatch
from taming.training.module import TrainingModule
from taming.training.optimizer import OptimizerConfig
from taming.training.validation import Validation, check_images
from taming.vqgan import VQGAN

__all__ = ["VQGANTraining"]

NUM_GRID_IMAGES = 16


class VQGANTraining(TrainingModule):
    """Trains encoder, quantizer and decoder, and beside them the discriminator.

    L = L_rec + λ_p L_perceptual + L_quantizer + λ L_GAN (eq. 5–7 of the paper). One forward pass of
    the VQGAN serves both optimizers, and the perceptual network is differentiated once, not once
    for the adaptive weight and once more for the step: its gradient at the reconstructions is kept.
    Before the discriminator's start it is not run at all.

    Args:
        vqgan: the model.
        perceptual: `(reconstructions, images)` to a scalar, or None.
        adversary: the discriminator and its schedule, or None.
        optimizer: of the VQGAN.
        reconstruction: `"l1"` or `"l2"`; `"cross_entropy"` for one-hot label maps, whose
            reconstructions are logits.
        reconstruction_weight: of that loss.
        perceptual_weight: of the perceptual loss.
        trained: `"all"`, or `"decoder"`: encoder and codebook stay as they are, and so do the
            tokens of any image.
        metrics: more numbers for validation, such as `FrechetDistance` and `LPIPSMetric`.
        health: watches for collapse, a discriminator that has won, and leaping gradients; or None.
        compile: compile the networks with `torch.compile`: slow to start, then faster.
        channels_last: keep images and weights channel by channel in memory, which convolutions on
            GPUs prefer.
        checkpointing: compute the autoencoder's activations again in the backward pass: less
            memory, more time.
        palette: red, green and blue by class, for the grids of label maps; None for a generated
            one.
        max_steps, accumulate, gradient_clip, ema_decay: see `TrainingModule`.
    """

    RECONSTRUCTION_LOSSES = {  # noqa: RUF012
        "l1": l1_loss,
        "l2": l2_loss,
        "cross_entropy": cross_entropy_loss,
    }

    def __init__(
        self,
        vqgan: VQGAN,
        perceptual: nn.Module | None,
        adversary: Adversary | None,
        *,
        optimizer: OptimizerConfig,
        max_steps: int,
        accumulate: int = 1,
        gradient_clip: float | None = 1.0,
        ema_decay: float | None = 0.999,
        reconstruction: str = "l1",
        reconstruction_weight: float = 1.0,
        perceptual_weight: float = 1.0,
        trained: str = "all",
        metrics: Sequence[Metric] = (),
        health: HealthWatch | None = None,
        compile: bool = False,
        channels_last: bool = False,
        checkpointing: bool = False,
        palette: Sequence[Sequence[int]] | None = None,
    ) -> None:
        super().__init__(
            vqgan,
            max_steps=max_steps,
            accumulate=accumulate,
            gradient_clip=gradient_clip,
            ema_decay=ema_decay,
        )
        if trained not in ("all", "decoder"):
            raise UserError(f"training.trained is 'all' or 'decoder', not {trained!r}.")
        if reconstruction not in self.RECONSTRUCTION_LOSSES:
            raise UserError(
                f"training.reconstruction is 'l1', 'l2' or 'cross_entropy', not {reconstruction!r}."
            )
        of_label_maps = reconstruction == "cross_entropy"
        check_images(
            vqgan,
            of_label_maps=of_label_maps,
            metrics=metrics,
            perceptual=perceptual,
            judged_as_pictures=perceptual is not None or adversary is not None,
        )
        if adversary is not None:
            adversary.discriminator.check_resolution(vqgan.resolution)
        self.vqgan = vqgan
        frozen = [vqgan.encoder, vqgan.pre_quantizer, vqgan.quantizer]
        self._frozen: list[nn.Module] = frozen if trained == "decoder" else []
        for part in self._frozen:
            part.requires_grad_(False)
        self.perceptual = perceptual
        self.adversary = adversary
        self.optimizer = optimizer
        self.pixel_loss = self.RECONSTRUCTION_LOSSES[reconstruction]
        self.reconstruction_weight = reconstruction_weight
        self.perceptual_weight = perceptual_weight
        self.health = health
        self.codebook_window = CodebookWindow(vqgan.codebook_size)
        self.adaptive_weight: torch.Tensor
        self.register_buffer("adaptive_weight", torch.zeros(()))
        vqgan.encoder.checkpointing = vqgan.decoder.checkpointing = checkpointing
        self.channels_last = channels_last
        if channels_last:
            self.to(memory_format=torch.channels_last)
        if compile:
            self._compile()
        self.palette = as_palette(palette, vqgan.image_channels) if of_label_maps else None
        losses = ["pixel_loss", "reconstruction_loss"]
        losses += [] if perceptual is None else ["perceptual_loss"]
        self.validation = Validation(
            vqgan, losses=losses, of_label_maps=of_label_maps, metrics=metrics
        )

    @property
    def averaged_vqgan(self) -> VQGAN:
        """The weights that are validated and exported."""
        model = self.ema.model if self.ema is not None else self.vqgan
        assert isinstance(model, VQGAN)
        return model

    @property
    def val_modes(self) -> dict[str, str]:
        """Of losses, image metrics and codebook usage."""
        return {f"val/{name}": mode for name, mode in self.validation.modes.items()}

    def to_saved(self) -> SavedModel:
        """The VQGAN as it would be exported now, with the discriminator for a later fine-tuning."""
        saved = self.averaged_vqgan.to_saved()
        if self.adversary is not None:
            saved.parts["discriminator"] = self.adversary.discriminator.to_saved()
        return saved

    def train(self, mode: bool = True) -> Self:
        """Frozen parts stay in evaluation mode: no dropout, no codebook statistics."""
        super().train(mode)
        for part in self._frozen:
            part.eval()
        return self

    def _compile(self) -> None:
        """Compiles in place: names of weights, and so checkpoints, stay as they are.

        The decoder's last convolution stays out: the adaptive weight differentiates it alone, and
        a compiled network can only be differentiated whole.
        """
        self.vqgan.encoder.compile()
        self.vqgan.decoder.features = torch.compile(  # type: ignore[method-assign]
            self.vqgan.decoder.features
        )
        if self.perceptual is not None:
            self.perceptual.compile()
        if self.adversary is not None:
            self.adversary.discriminator.compile()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """The VQGAN's optimizer, and the discriminator's if there is one."""
        optimizers: list[torch.optim.Optimizer] = [self.optimizer.build(self.vqgan.parameters())]
        if self.adversary is not None:
            discriminator = self.adversary.discriminator
            optimizers.append(self.adversary.optimizer.build(discriminator.parameters()))
        return optimizers

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the step of the discriminator's start, and what the health watch has seen."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["codebook_window"] = self.codebook_window.state_dict()
        checkpoint["health"] = None if self.health is None else self.health.state_dict()
        checkpoint["adversary_start"] = None if self.adversary is None else self.adversary.start

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A discriminator that has started stays so, though its fraction of the steps be later."""
        super().on_load_checkpoint(checkpoint)
        self.codebook_window.load_state_dict(checkpoint["codebook_window"])
        if self.health is not None and checkpoint["health"] is not None:
            self.health.load_state_dict(checkpoint["health"])
        start = checkpoint["adversary_start"]
        if self.adversary is not None and start is not None and start <= self.step:
            self.adversary.start = start

    def reconstruction_losses(
        self, reconstructions: torch.Tensor, images: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Two `(b c H W)` to the terms by name and their weighted sum, `reconstruction_loss`."""
        pixel = self.pixel_loss(reconstructions, images)
        losses = {"pixel_loss": pixel, "reconstruction_loss": self.reconstruction_weight * pixel}
        if self.perceptual is not None:
            perceptual = self.perceptual(reconstructions, images)
            losses["perceptual_loss"] = perceptual
            losses["reconstruction_loss"] = (
                losses["reconstruction_loss"] + self.perceptual_weight * perceptual
            )
        return losses

    def backward_losses(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gradients of both optimizers from one batch."""
        images = batch["images"]
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        self.vqgan.quantizer.set_step(self.step)
        output = self.vqgan(images)
        self.codebook_window.update(output.quantizer)
        reconstructions = output.reconstructions.float()
        # The losses see a leaf in place of the reconstructions: what they send back is a gradient
        # at the pixels, and nothing of it can reach the discriminator's weights.
        leaf = reconstructions.detach().requires_grad_()
        losses = self.reconstruction_losses(leaf, images)
        (gradient,) = torch.autograd.grad(losses["reconstruction_loss"], leaf)
        adversary = self.adversary
        factor = adversary.generator_factor(self.step) if adversary is not None else 0.0
        if adversary is not None and factor > 0:
            losses["generator_loss"] = adversary.generator_loss(leaf)
            (adversarial_gradient,) = torch.autograd.grad(losses["generator_loss"], leaf)
            if adversary.adaptive:
                if adversary.adapts_at(self.step):
                    self.adaptive_weight = adaptive_weight(
                        self._at_last_layer(reconstructions, gradient),
                        self._at_last_layer(reconstructions, adversarial_gradient),
                        maximum=adversary.adaptive_max,
                    )
                losses["adaptive_weight"] = self.adaptive_weight
                adversarial_gradient = self.adaptive_weight * adversarial_gradient
            gradient = gradient + factor * adversarial_gradient
        # this sum's derivative with respect to the reconstructions is `gradient`
        self.manual_backward((reconstructions * gradient).sum() + output.quantizer.loss)
        if adversary is not None and adversary.trains_at(self.step):
            discriminator = adversary.discriminator_loss(images, reconstructions.detach())
            self.manual_backward(discriminator["discriminator_loss"])
            losses.update(discriminator)
        return {**losses, **output.quantizer.losses}

    def _at_last_layer(self, reconstructions: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient at the reconstructions, carried back to the decoder's last layer.

        Averaged over ranks: the weight is the same on all of them.
        """
        (at_last_layer,) = torch.autograd.grad(
            reconstructions, self.vqgan.last_layer, grad_outputs=gradient, retain_graph=True
        )
        return mean_over_ranks(at_last_layer)

    def training_metrics(self) -> dict[str, float]:
        """Codebook usage and perplexity in training, when enough latents have been seen."""
        return self.codebook_window.compute_if_full()

    def check_health(self, metrics: Mapping[str, float]) -> list[str]:
        """What is going wrong, in plain words."""
        if self.health is None:
            return []
        kind = self.vqgan.config["quantizer"]["kind"]
        return self.health.check(metrics, quantizer=kind, frozen=bool(self._frozen))

    def update(self) -> None:
        """One step of each optimizer that has something to learn from, then the average."""
        optimizers = self.optimizers()
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        self.step_optimizer(optimizers[0], self.optimizer, self.vqgan.parameters(), "")
        if self.adversary is not None and self.adversary.trains_at(self.step):
            self.step_optimizer(
                optimizers[1],
                self.adversary.optimizer,
                self.adversary.discriminator.parameters(),
                "discriminator_",
                since=self.adversary.start,
            )
        if self.ema is not None:
            self.ema.update(self.vqgan)

    def on_validation_epoch_start(self) -> None:
        """Forgets the last validation."""
        self.validation.reset()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Adds a batch to the numbers; the first makes the grid."""
        images = batch["images"]
        output = self.averaged_vqgan(images)
        reconstructions = output.reconstructions.float()
        self.validation.update(images, output, self.reconstruction_losses(reconstructions, images))
        if batch_idx == 0:
            count = NUM_GRID_IMAGES
            grid = reconstruction_grid(images[:count], reconstructions[:count], self.palette)
            self.report_image("reconstructions", grid)

    def on_validation_epoch_end(self) -> None:
        """Reports numbers over the whole validation set, of all ranks."""
        numbers = self.validation.compute()
        self.report({f"val/{name}": value for name, value in numbers.items()})
