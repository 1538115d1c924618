"""In which order a model of any order draws the cells of an image, and how many at once."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from taming.generation.options import SamplingOptions
from taming.runtime.errors import UserError
from taming.transformer.orders import order_cells

__all__ = ["drawing_order", "step_ends"]


def drawing_order(
    options: SamplingOptions, image_numbers: Sequence[int], grid_size: tuple[int, int]
) -> Tensor:
    """Returns the cells in drawing order: `(n,)` int64, or `(b n)` if each image has its own.

    A random order depends only on the seed and the image's number.

    Raises:
        UserError: if several tokens are to be drawn at once in raster order.
    """
    order = options.order or ("raster" if options.num_steps is None else "halton")
    if order == "raster" and options.num_steps is not None:
        raise UserError(
            "num_steps draws several tokens at once, and neighbours in raster order depend on each "
            "other too much for that. Use order=halton or order=random, or leave num_steps out."
        )
    if order != "random":
        return order_cells(order, grid_size)
    assert options.seed is not None
    orders = [
        np.random.default_rng(
            np.random.SeedSequence(options.seed, spawn_key=(number, 1))
        ).permutation(math.prod(grid_size))
        for number in image_numbers
    ]
    return torch.from_numpy(np.stack(orders)).long()


def step_ends(num_tokens: int, num_steps: int | None) -> list[int]:
    """Returns how many tokens are known after each step of an image.

    After a share s of the steps, 1 - cos(π s / 2) of the tokens are known: a few at first, while
    nothing is certain, and many at last (the cosine schedule of Chang et al. 2022, "MaskGIT"). Each
    step draws a token at least.

    Args:
        num_tokens: n.
        num_steps: None, or n and more: a step for each token.
    """
    if num_steps is None or num_steps >= num_tokens:
        return list(range(1, num_tokens + 1))
    ends = [0]
    for step in range(1, num_steps + 1):
        share = 1 - math.cos(math.pi / 2 * step / num_steps)
        latest = num_tokens - (num_steps - step)  # leaves a token for each step to come
        ends.append(min(max(round(share * num_tokens), ends[-1] + 1), latest))
    return ends[1:]
