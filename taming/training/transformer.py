"""Stage 2: training a GPT on the tokenizer's codes (Esser et al. 2021, §3.2)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le
from torch import nn

from taming.conditioning import ClassLabel, Conditioning, ImageCondition, Unconditional
from taming.data.module import ImageDataModule
from taming.evaluation import TokenLikelihood
from taming.generation import ImageGenerator
from taming.losses import FrozenNetwork
from taming.runtime.errors import UserError
from taming.serialization import SavedModel
from taming.tokenizer import Tokenizer
from taming.training.module import Switch, TrainedNetwork, TrainingModule, prefixed
from taming.training.optimizer import OptimizerConfig
from taming.transformer.orders import to_tokens

__all__ = ["TransformerTraining", "build_conditioning"]


class TransformerTraining(TrainingModule):
    """Trains the transformer to predict each token from those before it and the condition.

    The loss is the mean cross-entropy of a token, in nats.

    Args:
        generator: the transformer to train, with its conditioning and its frozen tokenizers.
        optimizer: settings of the transformer's optimizer.
        pkeep: probability with which each input token is kept; the others are replaced by random
            ones, as if sampling had gone wrong there (Esser et al. 2021's code).
        compile: whether to compile the transformer with `torch.compile`: slow to start, then
            faster; `"auto"` is for `choose_execution`.
        checkpointing: whether to compute the transformer's activations again in the backward pass:
            less memory, more time.
    """

    IN_PROGRESS_BAR = ("loss",)

    def __init__(
        self,
        generator: ImageGenerator,
        *,
        optimizer: OptimizerConfig,
        pkeep: Annotated[float, Gt(0), Le(1)] = 1.0,
        compile: Switch = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.transformer = generator.transformer.train()
        self.conditioning = generator.conditioning
        # they are needed for grids and exports only, and belong to no checkpoint's weights
        self.tokenizers = FrozenNetwork(
            nn.ModuleList(
                part
                for part in (generator.tokenizer, generator.condition_tokenizer)
                if part is not None
            )
        )
        self._generator = [generator]  # a list: its parts are registered above
        self.optimizer = optimizer
        self.pkeep = pkeep
        self.transformer.checkpointing = checkpointing
        self._token_losses = self.transformer.token_losses
        self.compiled = compile
        self.likelihood = TokenLikelihood()
        metrics = ("val/loss", "val/bits_per_token", "val/perplexity", "val/gap")
        self.val_modes = dict.fromkeys(metrics, "min")

    def compile_networks(self) -> None:
        """Compiles the transformer for training alone: sampling would compile every length."""
        self._token_losses = torch.compile(self.transformer.token_losses)

    @property
    def generator(self) -> ImageGenerator:
        """The transformer with its tokenizers."""
        return self._generator[0]

    def trained_networks(self) -> list[TrainedNetwork]:
        return [TrainedNetwork(self.transformer, self.optimizer)]

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> dict[str, Any]:
        """Returns `{"loss": …}`.

        A batch has `indices` `(b h w)` and, as the condition needs them, `labels` `(b,)` or
        `condition_indices` `(b h' w')`.
        """
        tokens = to_tokens(batch["indices"])  # (b n)
        prompt = self.conditioning.prompt(self._condition(batch), len(tokens), tokens.device)
        prompt = self.conditioning.drop(prompt)
        inputs = self._disturbed(tokens)
        losses = self._token_losses(prompt.prefix, inputs, prompt.context, targets=tokens)  # (b n)
        loss = losses.mean()
        self.remember({"loss": loss})
        return {"loss": loss}

    def _disturbed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the tokens, each replaced by a random one with probability 1 - `pkeep`."""
        if self.pkeep == 1:
            return tokens
        kept = torch.rand(tokens.shape, device=tokens.device) < self.pkeep  # (b n)
        others = torch.randint_like(tokens, high=self.transformer.config.codebook_size)
        return torch.where(kept, tokens, others)

    def _condition(self, batch: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """Returns what the model is conditioned on; the batch may have more."""
        if self.conditioning.takes_images:
            return to_tokens(batch["condition_indices"])  # (b p)
        return None if self.conditioning.num_classes is None else batch["labels"]

    # --- validation -----------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self.likelihood.reset()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        tokens = to_tokens(batch["indices"])
        prompt = self.conditioning.prompt(self._condition(batch), len(tokens), tokens.device)
        self.likelihood.update(self.transformer.token_losses(prompt.prefix, tokens, prompt.context))

    def on_validation_epoch_end(self) -> None:
        found = {name: float(value) for name, value in self.likelihood.compute().items()}
        loss = found.pop("nats_per_token")
        self.log_validation({"loss": loss, **found, "gap": loss - self.recent("loss")})

    # --- checkpoints ----------------------------------------------------------------------------

    def saved_from(self, state: Mapping[str, torch.Tensor]) -> SavedModel:
        """Returns the generator, with its tokenizers."""
        saved = self.generator.to_saved()
        weights = prefixed(state, "transformer")
        saved.parts["transformer"] = replace(saved.parts["transformer"], state=weights)
        return saved


def build_conditioning(
    images: ImageDataModule,
    condition_tokenizer: Tokenizer | None,
    *,
    kind: Literal["auto", "class", "image", "none"],
    dropout: float,
    condition_as: Literal["prefix", "context"],
) -> Conditioning:
    """Returns the conditioning that the images allow.

    Args:
        images: the training data.
        condition_tokenizer: tokenizer of their condition images, if there are any.
        kind: with `"auto"` condition images, else classes, else nothing, whichever there is.
        dropout: share of the conditions left out in training.
        condition_as: whether a condition image is a prefix or a context.

    Raises:
        UserError: for classes that the images do not have, or settings of a condition where there
            is none.
    """
    if condition_tokenizer is not None:
        reader = images.condition_reader
        return ImageCondition(
            condition_tokenizer.codebook_size,
            condition_tokenizer.grid_size_for(images.condition_resolution),
            dropout,
            as_context=condition_as == "context",
            palette=getattr(reader, "palette", None),
            unlabelled=getattr(reader, "unlabelled", None),
            unlabelled_class=getattr(reader, "unlabelled_class", None),
        )
    if condition_as == "context":
        raise UserError(
            "condition_as=context is for condition images, and here are none: they need "
            "data=paired and conditioning=image, or leave it out."
        )
    if kind == "class" and images.num_classes is None:
        raise UserError(
            "conditioning=class needs images with classes: one folder a class in "
            "data=image_folder, or a set that has them."
        )
    if kind != "none" and images.num_classes is not None:
        return ClassLabel(images.num_classes, dropout, images.class_names)
    if dropout > 0:
        raise UserError(
            f"condition_dropout={dropout} leaves out the condition some of the time, and here is "
            "none: set condition_dropout=0, or give images with classes or condition images."
        )
    return Unconditional()
