"""Another image as condition: a segmentation map, depth, edges, or any picture, as tokens."""

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
    """The tokens of the condition image, in front of the sequence or beside it.

    In front they are the prefix (Esser et al. 2021, section 3.2). Beside it they are the context
    that every layer attends to, and the prefix is a start token. One more id, the last, stands for
    "no condition"; a sequence without condition has it at every position.
    """

    kind = "image"
    takes_images = True
    condition_description = "a float condition image (c, H, W)"

    num_codes: int  # number of different condition tokens: the codes of their tokenizer
    grid_size: tuple[int, int]  # (height, width) of the condition image's code grid
    dropout: Dropout = 0.0  # share of the conditions that training replaces by "no condition"
    as_context: bool = False  # attended to, instead of being in front
    # red, green and blue, 0 to 255, of each class of label maps, to show them; None for pictures
    palette: Sequence[Sequence[int]] | None = None
    # how label maps were read in training, see `taming.data.LabelMapReader`: new ones likewise
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
        """Returns the condition's tokens `(b p)` as prefix or context."""
        if condition is None:
            length = self.grid_size[0] * self.grid_size[1]
            ids = torch.full((batch_size, length), self.num_codes, device=device)
        else:
            ids = condition.to(device=device, dtype=torch.int64)
        return Prompt(ids.new_zeros(len(ids), 1), ids) if self.as_context else Prompt(ids)

    def fits(self, condition: Tensor, num_images: int) -> bool:
        """Whether there is a float image or a grid of codes for each; refuses unknown codes."""
        is_image = condition.is_floating_point()
        if condition.ndim != 3 + is_image or len(condition) != num_images:
            return False
        least = greatest = 0
        if condition.numel() and not is_image:
            least, greatest = map(int, condition.aminmax())
        if not 0 <= least <= greatest < self.num_codes:
            raise UserError(
                f"the condition's tokens are {least} to {greatest}, and this model knows 0 to "
                f"{self.num_codes - 1}."
            )
        return True

    def transformer_config(self, grid_size: tuple[int, int]) -> dict[str, Any]:
        """Returns the arguments of a `GPTConfig` that depend on condition and code grid."""
        config = super().transformer_config(grid_size)
        if not self.as_context:
            return {**config, "prefix_grid_size": self.grid_size}
        context = {"num_context_ids": self.num_context_ids, "context_grid_size": self.grid_size}
        return {**config, **context}
