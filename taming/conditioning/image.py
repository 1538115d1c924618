"""Another image as condition: a segmentation map, depth, edges, or any picture, as tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taming.conditioning.base import Conditioning, Prompt, check_dropout
from taming.errors import UserError

__all__ = ["ImageCondition"]


class ImageCondition(Conditioning):
    """The tokens of the condition image, in front of the sequence or beside it.

    In front they are the prefix (Esser et al. 2021, section 3.2). Beside it they are the context
    that every layer attends to, and the prefix is a start token. One more id, the last, stands for
    "no condition"; a sequence without condition has it at every position.

    Args:
        num_codes: number of different condition tokens: the codes of their tokenizer.
        grid_size: (height, width) of the condition image's code grid.
        dropout: share of the conditions that training replaces by "no condition". Only with some
            can the model draw images without a condition.
        as_context: attended to, instead of being in front.
        palette: red, green and blue, 0 to 255, of each class of label maps, to show them; None for
            pictures.
        unlabelled, unlabelled_class: how label maps were read in training, see
            `taming.data.LabelMapReader`; new ones are to be read in the same way.
    """

    kind = "image"
    takes_images = True

    def __init__(
        self,
        num_codes: int,
        grid_size: Sequence[int],
        dropout: float = 0.0,
        as_context: bool = False,
        palette: Sequence[Sequence[int]] | None = None,
        unlabelled: int | None = 255,
        unlabelled_class: int | None = None,
    ) -> None:
        height, width = grid_size
        self.num_codes = num_codes
        self.grid_size = (height, width)
        self.dropout = check_dropout(dropout)
        self.as_context = as_context
        self.palette = None if palette is None else [list(color) for color in palette]
        self.unlabelled = unlabelled
        self.unlabelled_class = unlabelled_class
        self.prefix_length = 1 if as_context else height * width
        self.num_prefix_ids = 1 if as_context else num_codes + 1
        self.num_context_ids = num_codes + 1 if as_context else 0

    @property
    def no_condition_id(self) -> int:
        """The id of "no condition"."""
        return self.num_codes

    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """Returns the condition's tokens `(b p)` as prefix or context."""
        if condition is None:
            length = self.grid_size[0] * self.grid_size[1]
            ids = torch.full((batch_size, length), self.no_condition_id, device=device)
            return self._prompt(ids)
        return self._prompt(condition.to(device=device, dtype=torch.int64))

    def check_values(self, condition: Tensor) -> None:
        """Refuses tokens that are not codes of condition images."""
        if condition.numel() == 0:
            return
        least, greatest = int(condition.min()), int(condition.max())
        if not 0 <= least <= greatest < self.num_codes:
            raise UserError(
                f"the condition's tokens are {least} to {greatest}, and this model knows 0 to "
                f"{self.num_codes - 1}."
            )

    def check(self, condition: Tensor | None, num_images: int) -> None:
        """Refuses what is neither an image nor a grid of codes for each image.

        Condition images may be larger than in training: of the grid only the rank is checked.
        """
        if condition is None:
            if not self.can_do_without:
                raise UserError(
                    "this model was trained on condition images without condition_dropout and "
                    "has not learned to do without: give a condition image for each image."
                )
        elif len(condition) != num_images or condition.ndim != 3 + condition.is_floating_point():
            raise UserError(
                f"the condition is a {condition.dtype} tensor of shape {tuple(condition.shape)}, "
                f"where {num_images} condition images, float ({num_images}, c, H, W), are needed."
            )
        elif not condition.is_floating_point():
            self.check_values(condition)

    def drop(self, prompt: Prompt, generator: torch.Generator | None = None) -> Prompt:
        """Replaces all of a condition by "no condition" with probability `dropout`."""
        if self.dropout == 0.0:
            return prompt
        ids = prompt.prefix if prompt.context is None else prompt.context  # (b p)
        return self._prompt(self._dropped(ids, self.no_condition_id, generator))

    def transformer_config(self, grid_size: tuple[int, int]) -> dict[str, Any]:
        """Returns the arguments of a `GPTConfig` that depend on condition and code grid."""
        config = super().transformer_config(grid_size)
        if not self.as_context:
            return {**config, "prefix_grid_size": self.grid_size}
        context = {"num_context_ids": self.num_context_ids, "context_grid_size": self.grid_size}
        return {**config, **context}

    def config(self) -> dict[str, Any]:
        """Returns the plain dictionary from which `conditioning_from_config` rebuilds it."""
        return {
            "kind": self.kind,
            "num_codes": self.num_codes,
            "grid_size": list(self.grid_size),
            "dropout": self.dropout,
            "as_context": self.as_context,
            "palette": self.palette,
            "unlabelled": self.unlabelled,
            "unlabelled_class": self.unlabelled_class,
        }

    def _prompt(self, ids: Tensor) -> Prompt:
        if not self.as_context:
            return Prompt(ids)
        return Prompt(ids.new_zeros(len(ids), 1), ids)
