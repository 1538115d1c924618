"""95% intervals of means, shares, and numbers that have no formula for their error."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["Interval", "halves_deviation", "mean_interval", "normal_interval", "share_interval"]

NUM_SPLITS = 50  # of the images into halves
STANDARD_DEVIATIONS = 1.96  # they cover 95% of a normal distribution on both sides

Interval = tuple[float, float]


def normal_interval(value: float, deviation: float) -> Interval:
    """Returns the interval of a number with a normal error of this standard deviation."""
    return value - STANDARD_DEVIATIONS * deviation, value + STANDARD_DEVIATIONS * deviation


def mean_interval(values: Tensor) -> Interval | None:
    """Returns the interval of the mean of `values` `(n,)`; None for fewer than two."""
    if len(values) < 2:
        return None
    deviation = values.double().std() / len(values) ** 0.5
    return normal_interval(values.double().mean().item(), deviation.item())


def share_interval(hits: Tensor) -> Interval:
    """Returns the interval of the share of true values among `hits` `(n,)`, within [0, 1].

    Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference". It also
    holds for shares of 0 and 1, where an interval of the mean has no width.
    """
    share, excess = hits.double().mean().item(), STANDARD_DEVIATIONS**2 / len(hits)
    centre = (share + excess / 2) / (1 + excess)
    half_width = (excess * share * (1 - share) + excess**2 / 4) ** 0.5 / (1 + excess)
    return max(centre - half_width, 0.0), min(centre + half_width, 1.0)


def halves_deviation(
    statistic: Callable[[Tensor], float], num_images: int, seed: int | None = 0
) -> float:
    """Estimates the standard deviation of a statistic of a set of images.

    The images are split into random halves A and B many times. T(A) - T(B) has the standard
    deviation of 2 T, because each half holds half of the images and the halves share none. A
    bootstrap draws images repeatedly, and a set with repetitions behaves like a smaller one, so a
    Fréchet distance varies up to 9 times as much (see `benchmarks/coverage.py`).

    Args:
        statistic: function of the numbers of the images in a half, int64 `(h,)`.
        num_images: at least twice what the statistic needs.
        seed: of the splits.
    """
    rng, size = np.random.default_rng(seed), num_images // 2
    differences = []
    for _ in range(NUM_SPLITS):
        order = torch.from_numpy(rng.permutation(num_images))
        differences.append(statistic(order[:size]) - statistic(order[size : 2 * size]))
    return float(np.sqrt(np.mean(np.square(differences)))) / 2
