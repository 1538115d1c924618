"""Stage 2: training a GPT on the tokenizer's codes (Esser et al. 2021, §3.2)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le
from torch import nn

from taming.conditioning import ClassLabel, Conditioning, ImageCondition, Prompt, Unconditional
from taming.data.module import ImageDataModule
from taming.evaluation import TokenLikelihood
from taming.generation import ImageGenerator, load_condition_tokenizer
from taming.losses import FrozenNetwork
from taming.runtime.errors import UserError
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN, CellClasses, Tokenizer
from taming.training.module import Switch, TrainedNetwork, TrainingModule, submodule_state
from taming.training.optimizer import OptimizerConfig
from taming.training.orders import (
    ALWAYS_RANDOM,
    Annealing,
    TrainingOrder,
    model_order,
    validation_orders,
)
from taming.transformer.orders import to_tokens

__all__ = ["TransformerTraining", "build_conditioning", "find_condition_tokenizer"]


class TransformerTraining(TrainingModule):
    """Trains the transformer to predict each token from the previous tokens and the condition.

    The loss is the mean cross-entropy of a token, in nats.

    Args:
        generator: the transformer to train, its conditioning and its frozen tokenizers.
        optimizer: settings of the transformer's optimizer.
        pkeep: probability of keeping each input token. Random tokens replace the others, as if
            sampling had made mistakes there (the code of Esser et al. 2021).
        order: the order of the tokens. `"random"` and `"annealed"` need a transformer of any order;
            each image then trains in an order of its own.
        annealing: how `"annealed"` turns into raster order; None: the default of `Annealing`.
        compile: whether to compile the transformer with `torch.compile`, which starts more slowly
            and then trains faster. `choose_execution` replaces `"auto"`.
        checkpointing: whether to recompute the transformer's activations in the backward pass,
            which saves memory and costs time.
    """

    IN_PROGRESS_BAR = ("loss",)

    def __init__(
        self,
        generator: ImageGenerator,
        *,
        optimizer: OptimizerConfig,
        pkeep: Annotated[float, Gt(0), Le(1)] = 1.0,
        order: TrainingOrder = "raster",
        annealing: Annealing | None = None,
        compile: Switch = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.transformer = generator.transformer.train()
        self.conditioning = generator.conditioning
        # for grids and exports only; a FrozenNetwork keeps their weights out of the state
        parts = (generator.tokenizer, generator.condition_tokenizer)
        self.tokenizers = FrozenNetwork(nn.ModuleList(part for part in parts if part is not None))
        self._generator = [generator]  # in a list, because its parts are registered above
        self.optimizer = optimizer
        self.pkeep = pkeep
        assert model_order(order) == self.transformer.config.order, "the model has another order"
        self.annealing = ALWAYS_RANDOM if order == "random" else annealing or Annealing()
        self.transformer.checkpointing = checkpointing
        self._token_losses = self.transformer.token_losses
        self.compiled = compile
        self.likelihood = TokenLikelihood()
        self.random_likelihood = TokenLikelihood()
        metrics = ["val/loss", "val/bits_per_token", "val/perplexity", "val/gap"]
        if self.generator.any_order:
            metrics.append("val/random_bits_per_token")
        self.val_modes = dict.fromkeys(metrics, "min")

    def compile_networks(self) -> None:
        """Compiles the transformer for training only: sampling would compile every length."""
        self._token_losses = torch.compile(self.transformer.token_losses)

    @property
    def generator(self) -> ImageGenerator:
        return self._generator[0]

    def trained_networks(self) -> list[TrainedNetwork]:
        return [TrainedNetwork(self.transformer, self.optimizer)]

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> dict[str, Any]:
        """Returns `{"loss": …}`.

        A batch has `indices` `(b h w)` and, if the condition needs them, `labels` `(b,)` or
        `condition_indices` `(b h' w')`.
        """
        cells = self._training_cells(batch["indices"])  # (b n) in a model of any order
        tokens, prompt = self._tokens_and_prompt(batch, cells)  # (b n)
        prompt, inputs = self.conditioning.drop(prompt), tokens
        if self.pkeep < 1:
            is_kept = torch.rand(tokens.shape, device=tokens.device) < self.pkeep  # (b n)
            random_tokens = torch.randint_like(tokens, high=self.transformer.config.codebook_size)
            inputs = torch.where(is_kept, tokens, random_tokens)
        losses = self._token_losses(
            prompt.prefix, inputs, prompt.context, cells=cells, targets=tokens
        )  # (b n)
        loss = losses.mean()
        self.remember({"loss": loss})
        return {"loss": loss}

    def _training_cells(self, indices: torch.Tensor) -> torch.Tensor | None:
        """Draws an order for each image, `(b n)`; None if the model has a fixed order."""
        if not self.generator.any_order:
            return None
        batch_size, num_tokens = len(indices), self.generator.num_tokens
        share = self.annealing.share(self.global_step / self.trainer.max_steps)
        random_orders = torch.rand(batch_size, num_tokens, device=indices.device).argsort(dim=1)
        is_random = torch.rand(batch_size, 1, device=indices.device) < share
        raster = torch.arange(num_tokens, device=indices.device)
        return torch.where(is_random, random_orders, raster)

    def _tokens_and_prompt(
        self, batch: dict[str, torch.Tensor], cells: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Prompt]:
        """Returns the tokens `(b n)` of a batch, and the prompt for the condition in it."""
        indices, condition = batch["indices"], None
        tokens = self.generator.to_tokens(indices) if cells is None else to_tokens(indices, cells)
        if self.conditioning.takes_images:
            condition = to_tokens(batch["condition_indices"])  # (b p)
        elif self.conditioning.num_classes is not None:
            condition = batch["labels"]
        return tokens, self.conditioning.prompt(condition, len(tokens), tokens.device)

    # --- validation -----------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        # new ones, because Lightning's FSDP has converted the sums of the first to float32
        self.likelihood = TokenLikelihood().to(self.device)
        self.random_likelihood = TokenLikelihood().to(self.device)

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        tokens, prompt = self._tokens_and_prompt(batch)
        self.likelihood.update(self.transformer.token_losses(prompt.prefix, tokens, prompt.context))
        if self.generator.any_order:
            cells = validation_orders(tokens)
            losses = self.transformer.token_losses(
                prompt.prefix, tokens.gather(1, cells), prompt.context, cells=cells
            )
            self.random_likelihood.update(losses)

    def on_validation_epoch_end(self) -> None:
        """Logs the numbers of raster order or the model's fixed order, and of random orders.

        `val/loss` mixes the two as the training does at its end.
        """
        metrics = {name: float(value) for name, value in self.likelihood.compute().items()}
        loss = metrics.pop("nats_per_token")
        if self.generator.any_order:
            random = self.random_likelihood.compute()
            metrics["random_bits_per_token"] = float(random["bits_per_token"])
            loss += self.annealing.final_share * (float(random["nats_per_token"]) - loss)
        self.log_validation({"loss": loss, **metrics, "gap": loss - self.recent_mean("loss")})

    # --- checkpoints ----------------------------------------------------------------------------

    def to_saved(self, state: Mapping[str, torch.Tensor]) -> SavedModel:
        saved = self.generator.to_saved()
        weights = submodule_state(state, "transformer")
        saved.parts["transformer"] = replace(saved.parts["transformer"], state=weights)
        return saved


def find_condition_tokenizer(
    images: ImageDataModule,
    *,
    path: str | None,
    cell: int | None,
    downsample_factor: int,
    required: bool,
    saved_model: SavedModel | None = None,
) -> Tokenizer | None:
    """Returns the tokenizer of the condition images; None without them.

    It is the stage-1 model at `path`. Label maps need none: each cell of `cell` × `cell` pixels is
    a code, by default of `downsample_factor` pixels per side. The `saved_model` of a resumed run
    contains the tokenizer. The training data need not be set up.

    Raises:
        UserError: if the settings do not fit the images or each other.
    """
    reader, resolution = images.condition_reader, images.condition_resolution
    if reader is None:
        if required or path is not None or cell is not None:
            raise UserError(
                "conditioning=image, condition_tokenizer and condition_cell need images with "
                "condition images: data=paired."
            )
        return None
    if path is not None and cell is not None:
        raise UserError("give a condition_tokenizer or a condition_cell, not both.")
    tokenizer: Tokenizer | None
    if saved_model is not None:
        tokenizer = load_condition_tokenizer(saved_model)
    elif path is not None:
        tokenizer = VQGAN.from_pretrained(path)
    elif reader.label_maps:
        tokenizer = CellClasses(reader.channels, cell or downsample_factor, resolution)
    else:
        raise UserError(
            "condition images that are pictures need a condition_tokenizer: a stage-1 run on them. "
            "Only label maps work without one."
        )
    if tokenizer is not None:
        tokenizer.check_kind(reader.label_maps, reader.channels)
        tokenizer.grid_size_for(resolution)
    return tokenizer


def build_conditioning(
    images: ImageDataModule,
    condition_tokenizer: Tokenizer | None,
    *,
    kind: Literal["auto", "class", "image", "none"],
    dropout: float,
    condition_as: Literal["prefix", "context"],
) -> Conditioning:
    """Builds the conditioning for the training images.

    `"auto"` prefers condition images, which have a tokenizer, to classes, and classes to no
    condition. Training leaves out the share `dropout` of the conditions.

    Raises:
        UserError: if the images lack the condition that a setting needs.
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
            "condition_as=context needs condition images. Use data=paired and "
            "conditioning=image, or leave condition_as out."
        )
    if kind == "class" and images.num_classes is None:
        raise UserError(
            "conditioning=class needs images with classes. With data=image_folder, use one folder "
            "per class."
        )
    if kind != "none" and images.num_classes is not None:
        return ClassLabel(images.num_classes, dropout, images.class_names)
    if dropout > 0:
        raise UserError(
            f"condition_dropout={dropout} needs a condition to drop. Set "
            "condition_dropout=0, or use images with classes or condition images."
        )
    return Unconditional()
