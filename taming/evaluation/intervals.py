"""95% confidence intervals by bootstrap, for numbers that are measured on few images."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from taming.evaluation.distances import frechet_of_rows

__all__ = ["FEW_IMAGES", "MAX_IMAGES", "frechet_interval", "mean_interval"]

FEW_IMAGES = 500  # with fewer images an evaluation warns that its numbers are rough
MAX_IMAGES = 5000  # larger sets get no intervals
NUM_RESAMPLES = 100
STANDARD_DEVIATIONS = 1.96  # they cover 95% of a normal distribution on both sides

Interval = tuple[float, float]


def mean_interval(values: Tensor, seed: int | None = 0) -> Interval:
    """Returns the interval of the mean of `values`, one number per image, `(n,)`."""
    values = values.double()
    return _interval(values.mean().item(), len(values), seed, lambda rows: values[rows].mean())


def frechet_interval(
    distance: float, samples: Tensor, reference: Tensor, seed: int | None = 0
) -> Interval:
    """Returns the interval of the Fréchet distance of features `(n f)` to a fixed reference."""
    return _interval(distance, len(samples), seed, frechet_of_rows(samples, reference))


def _interval(
    value: float, count: int, seed: int | None, statistic: Callable[[Tensor], Tensor]
) -> Interval:
    # The resamples give the width and `value` the centre. A resample holds fewer different images,
    # and a Fréchet distance grows with fewer images, so the mean of the resamples is too high.
    rng = np.random.default_rng(seed)
    resampled = [
        statistic(torch.from_numpy(rng.integers(0, count, count))).item()
        for _ in range(NUM_RESAMPLES)
    ]
    half_width = STANDARD_DEVIATIONS * float(np.std(resampled, ddof=1))
    return value - half_width, value + half_width
