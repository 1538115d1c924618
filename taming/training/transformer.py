"""Stage 2: training a GPT on the tokenizer's codes (Esser et al. 2021, §3.2)."""

from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image

from taming.conditioning import CellClasses, Conditioning, ImageCondition
from taming.contexts import evaluation_mode
from taming.errors import UserError
from taming.evaluation import TokenLikelihood
from taming.generation import ImageGenerator
from taming.losses import FrozenNetwork
from taming.pictures import as_palette, condition_grid, image_grid
from taming.sequence import to_tokens
from taming.serialization import SavedModel
from taming.training.health import OverfittingWatch
from taming.training.module import TrainingModule
from taming.training.optimizer import OptimizerConfig
from taming.transformer import GPT
from taming.vqgan import VQGAN

__all__ = ["TransformerTraining"]


class TransformerTraining(TrainingModule):
    """Trains the transformer to predict each token from those before it and the condition.

    The loss is the mean cross-entropy of a token, in nats.

    Args:
        transformer: the model.
        tokenizer: the stage-1 model, frozen; part of the exported generator.
        conditioning: class label, image or none.
        grid_size: (height, width) of the code grid.
        condition_tokenizer: of condition images, likewise part of what is exported.
        optimizer: of the transformer.
        max_steps, accumulate, gradient_clip, ema_decay: see `TrainingModule`.
        num_samples: images of the sample grid made at each validation; 0 makes none.
        pkeep: probability of each input token to be kept; the others are replaced by random ones,
            as if sampling had gone wrong there (Esser et al. 2021's code). 1 keeps all.
        compile: compile the transformer with `torch.compile`: slow to start, then faster.
        checkpointing: compute the transformer's activations again in the backward pass: less
            memory, more time.
        patience: validations in a row without a better one, while the training loss falls, after
            which the run warns of overfitting.
    """

    def __init__(
        self,
        transformer: GPT,
        tokenizer: VQGAN,
        conditioning: Conditioning,
        grid_size: tuple[int, int],
        condition_tokenizer: VQGAN | CellClasses | None = None,
        *,
        optimizer: OptimizerConfig,
        max_steps: int,
        accumulate: int = 1,
        gradient_clip: float | None = 1.0,
        ema_decay: float | None = None,
        num_samples: int = 16,
        pkeep: float = 1.0,
        compile: bool = False,
        checkpointing: bool = False,
        patience: int = 3,
    ) -> None:
        super().__init__(
            transformer,
            max_steps=max_steps,
            accumulate=accumulate,
            gradient_clip=gradient_clip,
            ema_decay=ema_decay,
        )
        if num_samples < 0 or patience < 1:
            raise UserError("training: num_samples must be at least 0, and patience at least 1.")
        if not 0 < pkeep <= 1:
            raise UserError(f"training.pkeep must be more than 0 and at most 1, not {pkeep}.")
        self.transformer = transformer
        self.tokenizer = FrozenNetwork(tokenizer)
        self.condition_tokenizer = (
            None if condition_tokenizer is None else FrozenNetwork(condition_tokenizer)
        )
        self.conditioning = conditioning
        self.grid_size = grid_size
        self.optimizer = optimizer
        self.num_samples = num_samples
        self.pkeep = pkeep
        self._shown: dict[str, torch.Tensor] = {}
        transformer.checkpointing = checkpointing
        # of training alone: in sampling every length would be compiled
        self._token_logits = transformer.token_logits
        if compile:
            self._token_logits = torch.compile(transformer.token_logits)
        self.overfitting = OverfittingWatch(patience)
        self.likelihood = TokenLikelihood()

    @property
    def val_modes(self) -> dict[str, str]:
        """Of nats and bits per token, perplexity, and the distance from the training loss."""
        return dict.fromkeys(("val/loss", "val/bits_per_token", "val/perplexity", "val/gap"), "min")

    @property
    def averaged_transformer(self) -> GPT:
        """The weights that are validated and exported."""
        model = self.ema.model if self.ema is not None else self.transformer
        assert isinstance(model, GPT)
        return model

    @property
    def generator(self) -> ImageGenerator:
        """The averaged transformer with its tokenizers."""
        tokenizer = self.tokenizer.network
        assert isinstance(tokenizer, VQGAN)
        frozen = self.condition_tokenizer
        condition_tokenizer = None if frozen is None else frozen.network
        assert isinstance(condition_tokenizer, VQGAN | CellClasses | None)
        return ImageGenerator(
            tokenizer,
            self.averaged_transformer,
            self.conditioning,
            self.grid_size,
            condition_tokenizer=condition_tokenizer,
        )

    def to_saved(self) -> SavedModel:
        """The generator as it would be exported now."""
        return self.generator.to_saved()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The transformer's optimizer."""
        return self.optimizer.build(self.transformer.parameters())

    def backward_losses(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The gradient of one batch.

        `indices` `(b h w)` and, as the condition needs them, `labels` `(b,)` or `condition_indices`
        `(b h' w')`.
        """
        tokens = to_tokens(batch["indices"])  # (b n)
        prompt = self.conditioning.prompt(self._condition(batch), len(tokens), tokens.device)
        prompt = self.conditioning.drop(prompt)
        inputs = self._disturbed(tokens)
        logits = self._token_logits(prompt.prefix, inputs, prompt.context)  # (b n v)
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
        self.manual_backward(loss)
        return {"loss": loss}

    def on_before_batch_transfer(
        self, batch: dict[str, torch.Tensor], dataloader_idx: int
    ) -> dict[str, torch.Tensor]:
        """Refuses unknown conditions on the CPU: a GPU would have to be waited for."""
        condition = self._condition(batch)
        if condition is not None:
            self.conditioning.check_values(condition)
        return batch

    def _disturbed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens as input: each replaced by a random one with probability 1 - `pkeep`."""
        if self.pkeep == 1:
            return tokens
        kept = torch.rand(tokens.shape, device=tokens.device) < self.pkeep  # (b n)
        return torch.where(
            kept, tokens, torch.randint_like(tokens, high=self.transformer.config.codebook_size)
        )

    def _condition(self, batch: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """What the model is asked for: the data may have more that it is not."""
        if self.conditioning.takes_images:
            return to_tokens(batch["condition_indices"])  # (b p)
        return None if self.conditioning.num_classes is None else batch["labels"]

    def update(self) -> None:
        """One step of the optimizer, then the average."""
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        self.step_optimizer(optimizer, self.optimizer, self.transformer.parameters(), "")
        if self.ema is not None:
            self.ema.update(self.transformer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the overfitting watch remembers."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["overfitting"] = asdict(self.overfitting)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lets the overfitting watch go on."""
        super().on_load_checkpoint(checkpoint)
        self.overfitting.load_state_dict(checkpoint["overfitting"])

    def on_validation_epoch_start(self) -> None:
        """Forgets the last validation."""
        self.likelihood.reset()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Adds a batch's likelihood; the first is kept to be shown."""
        tokens = to_tokens(batch["indices"])
        prompt = self.conditioning.prompt(self._condition(batch), len(tokens), tokens.device)
        logits = self.averaged_transformer.token_logits(prompt.prefix, tokens, prompt.context)
        self.likelihood.update(logits, tokens)
        if batch_idx == 0:
            self._shown = {name: values[: self.num_samples] for name, values in batch.items()}

    def on_validation_epoch_end(self) -> None:
        """Reports nats, bits and perplexity over all tokens of all ranks, and draws samples."""
        found = {name: value.item() for name, value in self.likelihood.compute().items()}
        nats = found["nats_per_token"]
        train_loss = self.recent("loss")
        numbers = (nats, found["bits_per_token"], found["perplexity"], nats - train_loss)
        self.report(dict(zip(self.val_modes, numbers, strict=True)))
        warning = self.overfitting.update(self.step, train_loss, nats)
        if warning is not None:
            self.warn(warning)
        if self.num_samples > 0 and self.global_rank == 0:
            self._report_samples()

    def _report_samples(self) -> None:
        self.report_image("samples", self._sample_grid(self.generator))

    def _sample_grid(self, generator: ImageGenerator) -> Image.Image:
        """Samples by class, or beside the validation data's first conditions and real images."""
        if self.conditioning.takes_images:
            return self._conditional_grid(generator)
        condition, captions = None, None
        num_classes = self.conditioning.num_classes
        if num_classes is not None:
            condition = torch.arange(self.num_samples) % num_classes
            names = self.conditioning.class_names or [str(c) for c in range(num_classes)]
            captions = [names[label] for label in condition.tolist()]
        samples = generator.sample(self.num_samples, condition, seed=0)
        return image_grid(samples, captions=captions)

    def _conditional_grid(self, generator: ImageGenerator) -> Image.Image:
        encoder = generator.condition_tokenizer
        assert encoder is not None
        shown = self._shown["condition_indices"]
        assert isinstance(encoder, torch.nn.Module)
        with evaluation_mode(encoder):
            conditions = encoder.decode(shown)
        palette = None
        if encoder.label_maps:
            assert isinstance(self.conditioning, ImageCondition)
            palette = as_palette(self.conditioning.palette, encoder.image_channels)
        return condition_grid(
            conditions,
            generator.sample(len(shown), shown, seed=0),
            generator.decode(to_tokens(self._shown["indices"])),
            palette,
        )
