"""Confidence intervals of small sets of images."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from taming.evaluation.frechet import frechet_spread

__all__ = ["FEW_IMAGES", "MAX_IMAGES", "frechet_interval", "mean_interval"]

FEW_IMAGES = 500  # below them a plain caution
MAX_IMAGES = 5000  # of larger sets no interval is computed
NUM_RESAMPLES = 100
STANDARD_DEVIATIONS = 1.96  # 95% of a normal distribution

Interval = tuple[float, float]


def mean_interval(values: Tensor, seed: int | None = 0) -> Interval:
    """Returns the 95% bootstrap interval of the mean of one number an image, `(n,)`."""
    values = values.double()
    return _interval(values.mean().item(), len(values), seed, lambda rows: values[rows].mean())


def frechet_interval(
    distance: float, samples: Tensor, reference: Tensor, seed: int | None = 0
) -> Interval:
    """Returns the 95% bootstrap interval of a Fréchet distance, the reference taken as fixed."""
    distance_of = frechet_spread(samples, reference)
    return _interval(distance, len(samples), seed, distance_of)


def _interval(
    value: float, count: int, seed: int | None, statistic: Callable[[Tensor], Tensor]
) -> Interval:
    # around the value by the spread of the resamples: their own mean is too high for a distance,
    # which grows with the fewer different images of a resample
    rng = np.random.default_rng(seed)
    found = [
        statistic(torch.from_numpy(rng.integers(0, count, count))).item()
        for _ in range(NUM_RESAMPLES)
    ]
    half = STANDARD_DEVIATIONS * float(np.std(found, ddof=1))
    return value - half, value + half
