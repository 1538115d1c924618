"""Target positions: each input says which cell the model must predict next.

Without them, a model of random orders cannot know which cell it predicts. Pannatier et al. 2024,
"σ-GPTs: A New Approach to Autoregressive Models"; Yu et al. 2024, "Randomized Autoregressive Visual
Generation".
"""

import math

import torch
from torch import Tensor, nn

from taming.positions import SinusoidalPositions2D, grid_coordinates

__all__ = ["TargetPositions"]


class TargetPositions(nn.Module):
    """Adds a linear map of the sinusoidal encoding of the target's row and column to each input.

    The map lets the model tell the target from the input's own row and column, which have the same
    encoding.

    Args:
        grid_size: (height, width) of the code grid.
        dim: width of the inputs.
        scale: factor of the encoding.
    """

    def __init__(self, grid_size: tuple[int, int], dim: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.no_target = grid_size[0] * grid_size[1]  # the number that means "no cell"
        cells = grid_coordinates(grid_size).flatten(0, 1)  # (n 2)
        nothing = cells.new_full((1, 2), math.nan)
        self.encoding = SinusoidalPositions2D(dim, torch.cat([cells, nothing]), scale=scale)
        self.map = nn.Linear(dim, dim, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Draws the map from N(0, 1 / √dim), which keeps the scale of the encoding."""
        nn.init.normal_(self.map.weight, std=self.map.in_features**-0.5)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Adds the targets `(b n)`, numbers of cells or `no_target`, to inputs `(b n dim)`."""
        encoding = self.map(self.encoding.table.to(self.map.weight.dtype))  # (n+1 dim)
        return x + encoding[targets].to(x.dtype)
