"""A tokenizer of label maps without weights."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from taming.runtime.errors import UserError
from taming.tokenizer.interface import Tokenizer

__all__ = ["CellClasses"]


class CellClasses(Tokenizer):
    """Encodes a one-hot label map as the most frequent class in each cell of a grid.

    It replaces a `VQGAN` trained on label maps. Details smaller than half a cell are lost.

    Args:
        num_classes: classes of the label maps; also the codebook size.
        cell_size: height and width of a cell in pixels; also the downsample factor.
        resolution: see `Tokenizer`.
    """

    kind = "cell_classes"
    label_maps = True

    def __init__(self, num_classes: int, cell_size: int, resolution: int | Sequence[int]) -> None:
        super().__init__(resolution, cell_size)
        self.image_channels = self.codebook_size = num_classes
        self.config: dict[str, Any] = {
            "num_classes": num_classes,
            "cell_size": cell_size,
            "resolution": list(self.resolution),
        }

    def encode(self, label_maps: Tensor) -> Tensor:
        """Maps one-hot `(b c H W)` to `(b h w)` int64; the lowest of equally frequent classes.

        Raises:
            UserError: if classes or size of the label maps do not fit.
        """
        if label_maps.ndim != 4 or label_maps.shape[1] != self.codebook_size:
            raise UserError(
                f"the tokenizer takes one-hot label maps (b {self.codebook_size} H W), not "
                f"{tuple(label_maps.shape)}."
            )
        self.grid_size_for(label_maps.shape[2:])
        counts = F.avg_pool2d(label_maps.float(), self.downsample_factor, divisor_override=1)
        return counts.argmax(1)  # (b h w)

    def decode(self, indices: Tensor) -> Tensor:
        """Fills each cell with its class: `(b h w)` int64 to one-hot `(b c H W)` float32."""
        one_hot = F.one_hot(indices, self.codebook_size).movedim(-1, 1).float()  # (b c h w)
        rows = one_hot.repeat_interleave(self.downsample_factor, 2)  # (b c H w)
        return rows.repeat_interleave(self.downsample_factor, 3)
