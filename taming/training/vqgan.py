"""Stage 1: training a VQGAN (Esser et al. 2021, §3.1)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import torch
from annotated_types import Ge
from torch import nn
from torchmetrics import Metric

from taming.evaluation import CodebookUsage
from taming.losses import RECONSTRUCTION_LOSSES, adaptive_weight
from taming.runtime.errors import UserError
from taming.runtime.process_group import means_over_ranks, num_ranks
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN
from taming.training.adversary import Adversary
from taming.training.module import Switch, TrainedNetwork, TrainingModule, prefixed
from taming.training.optimizer import OptimizerConfig
from taming.training.validation import Validation

__all__ = ["VQGANTraining"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of reconstructions and images


class VQGANTraining(TrainingModule):
    """Trains encoder, quantizer and decoder, and beside them the discriminator.

    L = L_rec + λ_p L_perceptual + L_quantizer + λ L_GAN (eq. 5–7 of the paper). One forward pass of
    the VQGAN serves both networks, and the perceptual network is differentiated once, not once for
    the adaptive weight and once more for the step. Before its start the discriminator is not run.

    Args:
        vqgan: the model.
        perceptual: `(reconstructions, images)` to a scalar, or None.
        adversary: the discriminator and its schedule, or None.
        optimizer: settings of the VQGAN's optimizer.
        reconstruction: loss of the pixels; `"cross_entropy"` for one-hot label maps, whose
            reconstructions are logits.
        reconstruction_weight: weight of that loss.
        perceptual_weight: weight of the perceptual loss.
        trained: with `"decoder"`, encoder and codebook stay as they are, and so do the tokens of
            any image.
        metrics: more numbers for validation, such as `FrechetDistance` and `LPIPSMetric`.
        compile: whether to compile the networks with `torch.compile`: slow to start, then faster.
        channels_last: whether to keep images and weights channel by channel in memory, which
            convolutions on GPUs prefer; `"auto"`, here too, is for `choose_execution`.
        checkpointing: whether to compute the autoencoder's activations again in the backward pass:
            less memory, more time.
    """

    IN_PROGRESS_BAR = ("pixel_loss", "perceptual_loss", "discriminator_loss")

    def __init__(
        self,
        vqgan: VQGAN,
        perceptual: nn.Module | None,
        adversary: Adversary | None,
        *,
        optimizer: OptimizerConfig,
        reconstruction: Literal["l1", "l2", "cross_entropy"] = "l1",
        reconstruction_weight: Annotated[float, Ge(0)] = 1.0,
        perceptual_weight: Annotated[float, Ge(0)] = 1.0,
        trained: Literal["all", "decoder"] = "all",
        metrics: Sequence[Metric] = (),
        compile: Switch = False,
        channels_last: Switch = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if vqgan.label_maps and (perceptual is not None or adversary is not None or metrics):
            raise UserError(
                "label maps are no pictures: training.reconstruction=cross_entropy needs "
                "perceptual=none, adversary=none and no metrics."
            )
        if not vqgan.takes_pictures and (perceptual is not None or metrics):
            raise UserError(
                f"images of {vqgan.image_channels} channels are no pictures to other networks: "
                "they need perceptual=none and no metrics."
            )
        self.perceptual = perceptual
        self.pixel_loss = RECONSTRUCTION_LOSSES[reconstruction]
        self.reconstruction_weight = reconstruction_weight
        self.perceptual_weight = perceptual_weight
        losses = [*self.loss_terms(), "reconstruction_loss"]
        self.validation = Validation(vqgan, losses, metrics)
        self.val_modes = self.validation.modes
        for judge in (*self.validation.metrics.values(), perceptual):
            smallest = getattr(judge, "min_side", 0)
            if min(vqgan.resolution) < smallest:
                raise UserError(
                    f"{type(judge).__name__} needs images of {smallest} pixels or more, and these "
                    "are {}×{}: use larger images, or leave it out.".format(*vqgan.resolution)
                )
        if adversary is not None:
            adversary.discriminator.check_resolution(vqgan.resolution)
        self.vqgan = vqgan
        frozen = [vqgan.encoder, vqgan.pre_quantizer, vqgan.quantizer]
        self.frozen: list[nn.Module] = frozen if trained == "decoder" else []
        for part in self.frozen:
            part.requires_grad_(False)
        self.adversary = adversary
        self.optimizer = optimizer
        self.codebook_window = CodebookUsage(vqgan.codebook_size)
        self.adaptive_weight: torch.Tensor
        self.register_buffer("adaptive_weight", torch.zeros(()))
        vqgan.encoder.checkpointing = vqgan.decoder.checkpointing = checkpointing
        self.set_execution(channels_last=channels_last, compile=compile)

    def compile_networks(self) -> None:
        """Compiles encoder, decoder, perceptual network and discriminator, each by itself.

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
            # the generator's batch and the discriminator's of twice that size, each for itself
            self.adversary.discriminator.compile(dynamic=False)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode; frozen parts stay in evaluation mode, without codebook statistics."""
        super().train(mode)
        for part in self.frozen:
            part.eval()
        return self

    def trained_networks(self) -> list[TrainedNetwork]:
        networks = [TrainedNetwork(self.vqgan, self.optimizer)]
        if self.adversary is not None:
            self.adversary.settle_start(self.trainer.max_steps)
            networks.append(
                TrainedNetwork(
                    self.adversary.discriminator,
                    self.adversary.optimizer,
                    prefix="discriminator_",
                    start=int(self.adversary.start),
                )
            )
        return networks

    # --- training -------------------------------------------------------------------------------

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> dict[str, Any]:
        """Returns one scalar whose gradient is right for both networks: `{"loss": …}`.

        The losses see a leaf in place of the reconstructions. What they send back is a gradient at
        the pixels, and nothing of it can reach the discriminator's weights.
        """
        images = batch["images"]
        if self.channels_last is True:
            images = images.contiguous(memory_format=torch.channels_last)
        self.vqgan.quantizer.set_step(self.global_step)
        output = self.vqgan(images)
        self.codebook_window.update(output.quantizer.code_counts)
        reconstructions = output.reconstructions.to(images.dtype)
        leaf = reconstructions.detach().requires_grad_()
        losses = self.reconstruction_losses(leaf, images)
        gradient = self._gradient(losses["reconstruction_loss"], leaf)
        adversary = self.adversary
        factor = adversary.generator_factor(self.global_step) if adversary is not None else 0.0
        if adversary is not None and factor > 0:
            losses["generator_loss"] = adversary.generator_loss(leaf)
            adversarial_gradient = self._gradient(losses["generator_loss"], leaf)
            if adversary.adaptive:
                if adversary.adapts_at(self.global_step):
                    at_last_layer = means_over_ranks(
                        self._at_last_layer(reconstructions, gradient),
                        self._at_last_layer(reconstructions, adversarial_gradient),
                    )
                    measured = adaptive_weight(*at_last_layer, maximum=adversary.adaptive_max)
                    # float16 overflows now and then: the scaler skips that step, not the next ones
                    self.adaptive_weight = measured.where(measured.isfinite(), self.adaptive_weight)
                losses["adaptive_weight"] = self.adaptive_weight
                adversarial_gradient = self.adaptive_weight * adversarial_gradient
            gradient = gradient + factor * adversarial_gradient
        # this sum's derivative with respect to the reconstructions is `gradient`
        loss = (reconstructions * gradient).sum() + output.quantizer.loss
        if adversary is not None and adversary.trains_at(self.global_step):
            metrics = adversary.discriminator_loss(images, reconstructions.detach())
            loss = loss + metrics["discriminator_loss"]
            losses |= metrics
        elif adversary is not None and num_ranks() > 1:
            # plain DDP waits for a gradient of every weight: here it is 0
            for weight in adversary.discriminator.parameters():
                loss = loss + 0.0 * weight.sum()
        self.remember({**losses, **output.quantizer.losses})
        return {"loss": loss}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Drops the zeros that the discriminator got before its start: AdamW would count them."""
        if self.adversary is not None and not self.adversary.trains_at(self.global_step):
            self.adversary.discriminator.zero_grad()

    def loss_terms(self) -> dict[str, tuple[float, Loss]]:
        """Returns weight and function of each term of the reconstruction loss, by name.

        A term added here is trained, validated and logged.
        """
        terms: dict[str, tuple[float, Loss]] = {
            "pixel_loss": (self.reconstruction_weight, self.pixel_loss)
        }
        if self.perceptual is not None:
            terms["perceptual_loss"] = (self.perceptual_weight, self.perceptual)
        return terms

    def reconstruction_losses(
        self, reconstructions: torch.Tensor, images: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Returns the loss terms by name, and their weighted sum as `reconstruction_loss`."""
        losses, weighted_sum = {}, torch.zeros((), device=images.device)
        for name, (weight, term) in self.loss_terms().items():
            losses[name] = term(reconstructions, images)
            weighted_sum = weighted_sum + weight * losses[name]
        return {**losses, "reconstruction_loss": weighted_sum}

    def _gradient(self, loss: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        """Returns the derivative of the loss with respect to the leaf, `(b c H W)`."""
        scale = self._scale(loss)
        return torch.autograd.grad(loss * scale, leaf)[0] / scale

    def _at_last_layer(self, reconstructions: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Carries a gradient back to the decoder's last layer."""
        scale = self._scale(gradient)
        (at_last_layer,) = torch.autograd.grad(
            reconstructions, self.vqgan.last_layer, grad_outputs=gradient * scale, retain_graph=True
        )
        return at_last_layer / scale

    def _scale(self, like: torch.Tensor) -> torch.Tensor | float:
        """Returns the factor that keeps float16 gradients from becoming 0; 1 otherwise."""
        return 1.0 if self.scaler is None else self.scaler.scale(torch.ones((), device=like.device))

    def training_metrics(self) -> dict[str, float]:
        """Returns codebook usage and perplexity whenever enough latents have been seen.

        Were all codes equally likely, 1 − e⁻⁸ = 99.97 % of them would be among eight latents a
        code. Usage over a single batch would be small for any codebook.
        """
        window = self.codebook_window
        if window.counts.sum() < 8 * self.vqgan.codebook_size:
            return {}
        metrics = {name: float(value) for name, value in window.compute().items()}
        window.reset()
        return metrics

    # --- validation -----------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self.validation.reset()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Adds a batch to the metrics; returns the reconstructions `(b c H W)`."""
        images = batch["images"]
        compiled = self.compiled is True  # for training: here each size of batch would be anew
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            output = self.vqgan(images)
            reconstructions = output.reconstructions.to(images.dtype)
            losses = self.reconstruction_losses(reconstructions, images)
        self.validation.update(images, output, losses)
        return reconstructions

    def on_validation_epoch_end(self) -> None:
        self.log_validation(self.validation.compute())

    # --- checkpoints ----------------------------------------------------------------------------

    def saved_from(self, state: Mapping[str, torch.Tensor]) -> SavedModel:
        """Returns the VQGAN, with the discriminator for a later fine-tuning."""
        saved = replace(self.vqgan.to_saved(), state=prefixed(state, "vqgan"))
        if self.adversary is not None:
            saved.parts["discriminator"] = replace(
                self.adversary.discriminator.to_saved(),
                state=prefixed(state, "adversary.discriminator"),
            )
        return saved

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the discriminator's start, and the codes counted for the next report."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["codebook_window"] = {"counts": self.codebook_window.counts}
        checkpoint["adversary_start"] = None if self.adversary is None else self.adversary.start

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores both; a discriminator that has started stays on, even if `start` is changed."""
        super().on_load_checkpoint(checkpoint)
        self.codebook_window.counts = checkpoint["codebook_window"]["counts"].clone()
        start = checkpoint["adversary_start"]
        if self.adversary is not None and start is not None and start <= checkpoint["global_step"]:
            self.adversary.start = start
