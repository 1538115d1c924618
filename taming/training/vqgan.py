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
from taming.training.module import Switch, TrainedNetwork, TrainingModule, submodule_state
from taming.training.optimizer import OptimizerConfig
from taming.training.validation import Validation

__all__ = ["VQGANTraining"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (reconstructions, images)


class VQGANTraining(TrainingModule):
    """Trains encoder, quantizer and decoder together with the discriminator.

    L = L_rec + λ_p L_perceptual + L_quantizer + λ L_GAN (eq. 5–7 of the paper). One forward pass of
    the VQGAN serves both networks. The adaptive weight and the step share one backward pass of the
    perceptual network. The discriminator does not run before its start.

    Args:
        vqgan: the model.
        perceptual: maps `(reconstructions, images)` to a scalar; None to leave it out.
        adversary: the discriminator and its schedule; None to leave it out.
        optimizer: settings of the VQGAN's optimizer.
        reconstruction: pixel loss; `"cross_entropy"` for one-hot label maps, whose reconstructions
            are logits.
        reconstruction_weight: weight of the pixel loss.
        perceptual_weight: weight of the perceptual loss.
        trained: `"decoder"` freezes encoder and codebook, so that images keep their tokens.
        metrics: additional metrics for validation, such as `FrechetDistance` and `LPIPSMetric`.
        compile: whether to compile the networks with `torch.compile`, which starts more slowly
            and then trains faster.
        channels_last: whether to use the channels-last memory format, which suits convolutions on
            GPUs. `choose_execution` replaces `"auto"`, here and in `compile`.
        checkpointing: whether to recompute the autoencoder's activations in the backward pass,
            which saves memory and costs time.
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
                "Label maps cannot use perceptual or adversarial losses or image metrics: "
                "training.reconstruction=cross_entropy needs perceptual=none, adversary=none and "
                "metrics=[]."
            )
        if not vqgan.takes_pictures and (perceptual is not None or metrics):
            raise UserError(
                f"Images with {vqgan.image_channels} channels cannot use networks that were "
                "trained on pictures: set perceptual=none and metrics=[]."
            )
        self.perceptual = perceptual
        self.pixel_loss = RECONSTRUCTION_LOSSES[reconstruction]
        self.reconstruction_weight = reconstruction_weight
        self.perceptual_weight = perceptual_weight
        losses = [*self.loss_terms(), "reconstruction_loss"]
        self.validation = Validation(vqgan, losses, metrics)
        self.val_modes = self.validation.modes
        for network in (*self.validation.metrics.values(), perceptual):
            min_side = getattr(network, "min_side", 0)
            if min(vqgan.resolution) < min_side:
                raise UserError(
                    f"{type(network).__name__} needs images of {min_side} pixels or more. These "
                    "are {}×{}. Use larger images, or leave it out.".format(*vqgan.resolution)
                )
        if adversary is not None:
            adversary.discriminator.check_resolution(vqgan.resolution)
        self.vqgan = vqgan
        parts_with_tokens = [vqgan.encoder, vqgan.pre_quantizer, vqgan.quantizer]
        self.frozen: list[nn.Module] = parts_with_tokens if trained == "decoder" else []
        for part in self.frozen:
            part.requires_grad_(False)
        self.adversary, self.optimizer = adversary, optimizer
        self.codebook_window = CodebookUsage(vqgan.codebook_size)
        self.adaptive_weight: torch.Tensor
        self.register_buffer("adaptive_weight", torch.zeros(()))
        vqgan.encoder.checkpointing = vqgan.decoder.checkpointing = checkpointing
        self.set_execution(channels_last=channels_last, compile=compile)

    def compile_networks(self) -> None:
        """Compiles encoder, decoder, perceptual network and discriminator separately.

        The decoder's last convolution stays eager because the adaptive weight differentiates it
        alone, and a compiled network can only be differentiated as a whole.
        """
        self.vqgan.encoder.compile()
        self.vqgan.decoder.features = torch.compile(  # type: ignore[method-assign]
            self.vqgan.decoder.features
        )
        if self.perceptual is not None:
            self.perceptual.compile()
        if self.adversary is not None:
            # the generator's batch, and the discriminator's of twice that size
            self.adversary.discriminator.compile(dynamic=False)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode; frozen parts stay in evaluation mode and collect no statistics."""
        super().train(mode)
        for part in self.frozen:
            part.eval()
        return self

    def trained_networks(self) -> list[TrainedNetwork]:
        networks = [TrainedNetwork(self.vqgan, self.optimizer)]
        if self.adversary is not None:
            self.adversary.settle_start(self.trainer.max_steps)
            network, start = self.adversary.discriminator, int(self.adversary.start)
            optimizer = self.adversary.optimizer
            networks.append(TrainedNetwork(network, optimizer, "discriminator_", start))
        return networks

    # --- training -------------------------------------------------------------------------------

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> dict[str, Any]:
        """Returns one scalar whose gradient is right for both networks: `{"loss": …}`.

        The losses see a leaf instead of the reconstructions. They send back a gradient at the
        pixels, which cannot reach the discriminator's weights.
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
                    self._adapt(reconstructions, gradient, adversarial_gradient)
                losses["adaptive_weight"] = self.adaptive_weight
                adversarial_gradient = self.adaptive_weight * adversarial_gradient
            gradient = gradient + factor * adversarial_gradient
        # the derivative of this sum with respect to the reconstructions is `gradient`
        loss = (reconstructions * gradient).sum() + output.quantizer.loss
        if adversary is not None and adversary.trains_at(self.global_step):
            metrics = adversary.discriminator_loss(images, reconstructions.detach())
            loss = loss + metrics["discriminator_loss"]
            losses |= metrics
        elif adversary is not None and num_ranks() > 1:
            # DDP waits for a gradient of every weight, so give it zeros
            for weight in adversary.discriminator.parameters():
                loss = loss + 0.0 * weight.sum()
        self.remember({**losses, **output.quantizer.losses})
        return {"loss": loss}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Removes the zero gradients before the discriminator's start: AdamW would count them."""
        if self.adversary is not None and not self.adversary.trains_at(self.global_step):
            self.adversary.discriminator.zero_grad()
        super().on_before_optimizer_step(optimizer)

    def loss_terms(self) -> dict[str, tuple[float, Loss]]:
        """Returns the weight and the function of each term of the reconstruction loss.

        Training, validation and logging include every term. Add yours here.
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
        """Returns the loss terms, and their weighted sum as `reconstruction_loss`."""
        losses, weighted_sum = {}, torch.zeros((), device=images.device)
        for name, (weight, term) in self.loss_terms().items():
            losses[name] = term(reconstructions, images)
            weighted_sum = weighted_sum + weight * losses[name]
        return {**losses, "reconstruction_loss": weighted_sum}

    def _adapt(self, reconstructions: torch.Tensor, *gradients: torch.Tensor) -> None:
        """Measures the adaptive weight at the decoder's last layer, over all ranks (eq. 7)."""
        assert self.adversary is not None
        at_last_layer = means_over_ranks(
            *(self._at_last_layer(reconstructions, gradient) for gradient in gradients)
        )
        weight = adaptive_weight(*at_last_layer, maximum=self.adversary.adaptive_max)
        # a float16 overflow costs one step, which the scaler skips, and not the following ones
        self.adaptive_weight = weight.where(weight.isfinite(), self.adaptive_weight)

    def _gradient(self, loss: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        """Returns the derivative of the loss with respect to the leaf, `(b c H W)`."""
        scale = self._scale(loss)
        return torch.autograd.grad(loss * scale, leaf)[0] / scale

    def _at_last_layer(self, reconstructions: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Propagates a gradient from the pixels to the weights of the decoder's last layer."""
        scale = self._scale(gradient)
        (at_last_layer,) = torch.autograd.grad(
            reconstructions, self.vqgan.last_layer, grad_outputs=gradient * scale, retain_graph=True
        )
        return at_last_layer / scale

    def _scale(self, like: torch.Tensor) -> torch.Tensor | float:
        """Returns the factor that keeps float16 gradients from vanishing; 1 otherwise."""
        return 1.0 if self.scaler is None else self.scaler.scale(torch.ones((), device=like.device))

    def training_metrics(self) -> dict[str, float]:
        """Returns codebook usage and perplexity once there are eight latents per code.

        If all codes were equally likely, 1 − e⁻⁸ = 99.97 % of them would appear.
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
        compiled = self.compiled is True  # validation would compile each size of batch
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            output = self.vqgan(images)
            reconstructions = output.reconstructions.to(images.dtype)
            losses = self.reconstruction_losses(reconstructions, images)
        self.validation.update(images, output, losses)
        return reconstructions

    def on_validation_epoch_end(self) -> None:
        self.log_validation(self.validation.compute())

    # --- checkpoints ----------------------------------------------------------------------------

    def to_saved(self, state: Mapping[str, torch.Tensor]) -> SavedModel:
        """Returns the VQGAN, and the discriminator for a later fine-tuning."""
        saved = replace(self.vqgan.to_saved(), state=submodule_state(state, "vqgan"))
        if self.adversary is not None:
            discriminator_state = submodule_state(state, "adversary.discriminator")
            saved.parts["discriminator"] = replace(
                self.adversary.discriminator.to_saved(), state=discriminator_state
            )
        return saved

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["codebook_window"] = {"counts": self.codebook_window.counts}
        checkpoint["adversary_start"] = None if self.adversary is None else self.adversary.start

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A discriminator that has started stays on even if `start` changes."""
        super().on_load_checkpoint(checkpoint)
        self.codebook_window.counts = checkpoint["codebook_window"]["counts"].clone()
        start = checkpoint["adversary_start"]
        if self.adversary is not None and start is not None and start <= checkpoint["global_step"]:
            self.adversary.start = start
