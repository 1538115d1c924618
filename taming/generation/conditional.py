"""The transformer and its condition: the distribution of an image's tokens."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from taming.conditioning import Condition, Conditioning, Prompt
from taming.runtime.errors import UserError
from taming.serialization import PretrainedModel
from taming.tokenizer import Tokenizer, height_and_width
from taming.transformer import GPT
from taming.transformer.orders import order_cells, to_indices, to_tokens

__all__ = ["ConditionalTransformer"]


class ConditionalTransformer(PretrainedModel):
    """The distribution p(tokens | condition) of an image's tokens.

    Args:
        transformer: the GPT.
        conditioning: the kind of condition.
        grid_size: (height, width) of the code grid; a single number means square.
        condition_tokenizer: encodes condition images, for a model that takes them.

    Raises:
        UserError: if the transformer does not fit the condition and the grid.
    """

    def __init__(
        self,
        transformer: GPT,
        conditioning: Conditioning,
        grid_size: int | Sequence[int],
        condition_tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__()
        self.grid_size = height_and_width(grid_size)
        required = conditioning.transformer_config(self.grid_size)
        for name in ("num_prefix_ids", "context_length"):
            if getattr(transformer.config, name) < required[name]:
                raise UserError(
                    f"the transformer has {name}={getattr(transformer.config, name)}, but the "
                    f"condition and a grid of {self.grid_size} need {required[name]}: they belong "
                    "to different models."
                )
        self.transformer = transformer
        order = transformer.config.order
        self._cells: Tensor | None = None  # by position in the sequence; None: raster
        if order != "any" and order != "raster":
            self._cells = order_cells(order, self.grid_size)
        self.condition_tokenizer = condition_tokenizer
        self.conditioning = conditioning

    @property
    def num_tokens(self) -> int:
        """Number of tokens of one image."""
        return self.grid_size[0] * self.grid_size[1]

    @property
    def any_order(self) -> bool:
        """Whether the model draws cells in any order; its tokens stay in raster order."""
        return self.transformer.config.order == "any"

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names of the classes in the order of their labels; None if they are unknown."""
        return self.conditioning.class_names

    @property
    def device(self) -> torch.device:
        """The device of the weights and of all results."""
        return self.transformer.head.weight.device

    def logits(self, tokens: Tensor, condition: Condition = None) -> Tensor:
        """Returns logits aligned with the tokens: `logits[:, i]` predicts `tokens[:, i]`.

        Args:
            tokens: `(b n)` integers, n at most `num_tokens`.
            condition: see `ImageGenerator.sample_tokens`.

        Returns:
            `(b n v)` on the model's device, with gradients where they are enabled.

        Raises:
            UserError: if tokens or condition do not fit the model.
        """
        prompt, tokens = self._inputs(tokens, condition)
        return self.transformer.token_logits(prompt.prefix, tokens, prompt.context)

    def token_losses(self, tokens: Tensor, condition: Condition = None) -> Tensor:
        """Returns −log p of each token in nats, `(b n)`, in less memory than `logits`."""
        prompt, tokens = self._inputs(tokens, condition)
        return self.transformer.token_losses(prompt.prefix, tokens, prompt.context)

    def _inputs(self, tokens: Tensor, condition: Condition) -> tuple[Prompt, Tensor]:
        """Checks tokens and condition and returns them as the transformer takes them."""
        tokens = self.check_tokens(tokens, self.grid_size)
        checked = self.conditioning.check(condition, len(tokens))
        encoded = self.encode_condition(checked, self.grid_size)
        return self.prompt(encoded, len(tokens)), tokens

    def to_tokens(self, indices: Tensor) -> Tensor:
        """Returns the tokens `(b n)` of indices `(b h w)`, in the model's order."""
        return to_tokens(indices, self._order_of(indices.shape[1:3], indices.device))

    def to_indices(self, tokens: Tensor, grid_size: tuple[int, int] | None = None) -> Tensor:
        """Returns the indices `(b h w …)` of tokens `(b n …)`; None: of the trained size."""
        grid_size = grid_size or self.grid_size
        return to_indices(tokens, grid_size, self._order_of(grid_size, tokens.device))

    def _order_of(self, grid_size: Sequence[int], device: torch.device) -> Tensor | None:
        if self._cells is None:
            return None
        if tuple(grid_size) != self.grid_size:
            raise UserError(
                f"{grid_size[0]} × {grid_size[1]} codes are not the model's {self.grid_size[0]} × "
                f"{self.grid_size[1]}. Its order, {self.transformer.config.order}, has no other "
                "sizes."
            )
        return self._cells.to(device)

    def check_tokens(
        self, tokens: Tensor, grid_size: tuple[int, int], *, partly: bool = False
    ) -> Tensor:
        """Checks tokens of whole or partial images of this size; returns int64 on the device.

        If images may be given `partly`, -1 marks tokens to draw.
        """
        limit, codebook_size = math.prod(grid_size), self.transformer.config.codebook_size
        if tokens.ndim != 2 or tokens.shape[1] > limit or tokens.is_floating_point():
            raise UserError(
                f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}. Give whole numbers "
                f"(b, n) with n at most {limit}, the number of tokens of an image."
            )
        tokens = tokens.long()
        lowest = -1 if partly else 0
        if tokens.numel() and not lowest <= int(tokens.min()) <= int(tokens.max()) < codebook_size:
            raise UserError(
                f"tokens are {int(tokens.min())} to {int(tokens.max())}, but this model has codes "
                f"0 to {codebook_size - 1}. Check which tokenizer made them."
            )
        return tokens.to(self.device)

    def encode_condition(
        self, condition: Tensor | None, grid_size: tuple[int, int]
    ) -> Tensor | None:
        """Returns the codes `(b h w)` of condition images, or labels unchanged; on the device.

        Args:
            condition: from `Conditioning.check`.
            grid_size: of the images to draw.
        """
        if condition is None:
            return None
        condition = condition.to(self.device)
        if not self.conditioning.takes_images:
            return condition
        if condition.is_floating_point():
            with torch.no_grad():
                condition = self.require_condition_tokenizer().encode(condition)  # (b h w)
        height, width = self.condition_grid_size(grid_size)
        if condition.shape[1:] != (height, width):
            raise UserError(
                f"the condition images have {condition.shape[1]} × {condition.shape[2]} codes, but "
                f"{height} × {width} are needed. Give condition images of another size."
            )
        return condition

    def prompt(
        self, condition: Tensor | None, batch_size: int, row: int = 0, column: int = 0
    ) -> Prompt:
        """Builds the prompts for a condition from `encode_condition`.

        Args:
            condition: labels `(b,)`, codes `(b h w)`, or None.
            batch_size: b.
            row: first row of the window, for an image larger than the trained size.
            column: first column of the window.
        """
        if condition is not None and self.conditioning.takes_images:
            height, width = self.conditioning.grid_size
            row = row * height // self.grid_size[0]
            column = column * width // self.grid_size[1]
            condition = to_tokens(condition[:, row : row + height, column : column + width])
        return self.conditioning.prompt(condition, batch_size, self.device)

    def condition_grid_size(self, grid_size: tuple[int, int]) -> tuple[int, int]:
        """Returns (height, width) in codes of the condition image for an image of this size."""
        sizes = zip(self.conditioning.grid_size, grid_size, self.grid_size, strict=True)
        height, width = (condition * size // trained for condition, size, trained in sizes)
        return height, width

    @property
    def window_step(self) -> tuple[int, int]:
        """The (rows, columns) that a window moves by so as not to cut a cell of the condition."""
        if not self.conditioning.takes_images:
            return 1, 1
        (height, width), (rows, columns) = self.grid_size, self.conditioning.grid_size
        return height // math.gcd(height, rows), width // math.gcd(width, columns)

    def require_condition_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer of condition images; raises a `UserError` if it is missing."""
        if self.condition_tokenizer is None:
            raise UserError("this generator was saved without its tokenizer for condition images.")
        return self.condition_tokenizer
