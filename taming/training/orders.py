"""Training in random orders, annealed to raster order."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from taming.transformer.orders import FixedOrder

__all__ = ["Annealing", "TrainingOrder", "model_order", "validation_orders"]

Share = Annotated[float, Ge(0), Le(1)]
TrainingOrder = FixedOrder | Literal["random", "annealed"]


@dataclass(frozen=True)
class Annealing:
    """The share of images that train in a random order, the others in raster order.

    It is 1 until `start`, declines linearly, and stays at `final_share` from `end` on. Yu et al.
    2024, "Randomized Autoregressive Visual Generation", anneal to 0 for the best images in raster
    order. A larger final share keeps the ability to complete any region.
    """

    start: Share = 0.5  # of the training's steps
    end: Share = 0.75  # of the training's steps
    final_share: Share = 0.0

    def share(self, progress: float) -> float:
        """Returns the share after a part of the training, 0 to 1."""
        if progress < self.start:
            return 1.0
        if progress >= self.end:
            return self.final_share
        return 1 - (1 - self.final_share) * (progress - self.start) / (self.end - self.start)


ALWAYS_RANDOM = Annealing(start=1.0, end=1.0, final_share=1.0)


def validation_orders(tokens: Tensor) -> Tensor:
    """Returns one of 64 fixed random orders, `(b n)`, for the tokens `(b n)` of each image.

    It depends on the image's tokens alone, so batches and processes make no difference.
    """
    random = torch.Generator().manual_seed(0)
    orders = torch.rand(64, tokens.shape[1], generator=random).argsort(dim=1)
    return orders.to(tokens.device)[tokens.sum(dim=1) % len(orders)]


def model_order(order: TrainingOrder) -> FixedOrder | Literal["any"]:
    """Returns the `GPTConfig.order` of a model that trains in this order."""
    return "any" if order == "random" or order == "annealed" else order
