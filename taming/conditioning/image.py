"""Another image as condition, as tokens: a segmentation map, depth, edges or any picture."""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from taming.conditioning.base import STRICT, Conditioning, Dropout, Prompt
from taming.runtime.errors import UserError

__all__ = ["ImageCondition"]


@dataclass(config=STRICT)
class ImageCondition(Conditioning):
    """The tokens of the condition image are the prefix (Esser et al. 2021, section 3.2).

    With `as_context` they are the context instead, which every layer attends to, and the prefix is
    a start token. One more id, the last, means "no condition"; it then fills every position.
    """

    kind = "image"
    takes_images = True
    condition_description = "a float condition image (c, H, W)"

    num_codes: int  # codebook size of the condition images' tokenizer
    grid_size: tuple[int, int]  # (height, width) of the condition image's code grid
    dropout: Dropout = 0.0  # share of the conditions that training replaces by "no condition"
    as_context: bool = False  # tokens are the context and not the prefix
    # (red, green, blue) from 0 to 255 that shows each class of label maps; None for pictures
    palette: Sequence[Sequence[int]] | None = None
    # how to read label maps, as in training; see `taming.data.LabelMapReader`
    unlabelled: int | None = 255
    unlabelled_class: int | None = None

    def __post_init__(self) -> None:
        if self.as_context:
            self.num_context_ids = self.num_codes + 1
        else:
            self.prefix_length = self.grid_size[0] * self.grid_size[1]
            self.num_prefix_ids = self.num_codes + 1

    def prompt(
        self, condition: Tensor | None, batch_size: int, device: torch.device | str = "cpu"
    ) -> Prompt:
        """Returns condition tokens `(b p)` as prefix or context."""
        if condition is None:
            length = self.grid_size[0] * self.grid_size[1]
            ids = torch.full((batch_size, length), self.num_codes, device=device)
        else:
            ids = condition.to(device=device, dtype=torch.int64)
        return Prompt(ids.new_zeros(len(ids), 1), ids) if self.as_context else Prompt(ids)

    def fits(self, condition: Tensor, num_images: int) -> bool:
        """Whether each image has a float image or a grid of indices; rejects unknown indices."""
        is_image = condition.is_floating_point()
        if condition.ndim != 3 + is_image or len(condition) != num_images:
            return False
        least = greatest = 0
        if condition.numel() and not is_image:
            least, greatest = map(int, condition.aminmax())
        if not 0 <= least <= greatest < self.num_codes:
            raise UserError(
                f"the condition's tokens are {least} to {greatest}, but must be 0 to "
                f"{self.num_codes - 1} for this model."
            )
        return True

    def transformer_config(self, grid_size: tuple[int, int]) -> dict[str, Any]:
        """Returns the fields of `GPTConfig` that depend on condition and code grid."""
        config = super().transformer_config(grid_size)
        if not self.as_context:
            return {**config, "prefix_grid_size": self.grid_size}
        context = {"num_context_ids": self.num_context_ids, "context_grid_size": self.grid_size}
        return {**config, **context}
