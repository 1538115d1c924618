"""Draws many data sets and counts how often the 95% intervals of an evaluation hold the truth.

    python -m benchmarks.coverage

The truth is the expectation of the number with this many images, because a Fréchet distance of few
images is always too large. It is the mean over all data sets, and the true deviation is their
standard deviation. The reference is fixed, as in an evaluation. "ratio" is the reported deviation
over the true one. Where intervals are slow, only some data sets get one, and the deviation of each
is held against the numbers of all data sets.

"before" is the bootstrap of earlier evaluations. It compared a reconstruction with its own image,
resampled only one side of pairs, and gave no interval of kernel distances.

The features are correlated and rectified, like the features of a network. "equal" samples
are distributed like the reference, "shifted" ones differently, and "pairs" are images and
reconstructions.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torchmetrics.image.kid import poly_mmd

from benchmarks.machine import machine
from benchmarks.table import aligned, number
from taming.evaluation.distances import frechet_of_rows, kernel_distance
from taming.evaluation.intervals import (
    STANDARD_DEVIATIONS,
    Interval,
    halves_deviation,
    mean_interval,
    normal_interval,
    share_interval,
)

NUM_REFERENCE = 1000
NUM_RESAMPLES = 100  # of the bootstrap
NUM_CAUSES = 64  # independent numbers behind the features of an image
NOISE_LEVELS = (0.02, 0.1, 0.3)
SHARES = (0.5, 0.95, 0.99)
CASES = ("equal", "shifted", "pairs")

Row = dict[str, str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table of pairs with noise, one of means and shares, and one of distances."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[60, 200, 600, 2000])
    parser.add_argument("--features", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--quick", action="store_true", help="few data sets of one small cell")
    options = parser.parse_args(arguments)
    counts, widths = ([40], [16]) if options.quick else (options.images, options.features)
    print(f"{machine()}\n\nKernel distances of 1,000 pairs with noise, 16 features")
    print(aligned(list(noisy_pairs())))
    print("\nMeans and shares: ratio, coverage (intervals)")
    rows = [row for count in counts for row in means_and_shares(count, options.quick)]
    print(f"{aligned(rows)}\n\nDistances: ratio, coverage (intervals)", flush=True)
    for count in counts:
        rows = [row for width in widths for row in distances(count, width, options.quick)]
        print(f"{aligned(rows)}\n", flush=True)


def noisy_pairs() -> Iterator[Row]:
    """Yields kernel distances of images x and x + noise, next to their expectation.

    For independent normal vectors with variances σ² and τ², xᵀy / f has the second moment σ²τ² / f
    and no odd moments. The kernel has the mean 1 + 3 σ²τ² / f, and the distance 3 (σ² - τ²)² / f.
    """
    random = torch.Generator().manual_seed(0)
    images = torch.randn(1000, 16, generator=random, dtype=torch.float64)
    for level in NOISE_LEVELS:
        noise = torch.randn(images.shape, generator=random, dtype=torch.float64)
        pair = images + level * noise, images
        after = kernel_distance(*pair, paired=True)
        assert after is not None and after.interval is not None
        low, high = after.interval
        yield {
            "noise": f"{level}",
            "expectation": f"{3 * level**4 / 16:.2g}",
            "before": f"{poly_mmd(*pair).item():.2g}",
            "after": f"{after.distance:.2g}",
            "interval": f"{low:.2g} to {high:.2g}",
        }


def means_and_shares(count: int, quick: bool) -> Iterator[Row]:
    """Yields rows for means and shares of `count` images."""
    random = torch.Generator().manual_seed(0)
    shape = (60 if quick else 400, count)
    normal = torch.randn(shape, generator=random, dtype=torch.float64)
    sets = {"mean": ((normal / 2).exp(), np.e**0.125)}  # log-normal, so it is skewed
    sets |= {f"share of {x:.0%}": (torch.rand(shape, generator=random) < x, x) for x in SHARES}
    for name, (values, truth) in sets.items():
        after: Callable[[Tensor], Interval | None] = share_interval
        if name == "mean":
            after = mean_interval
        deviation = values.double().mean(1).std().item()
        row = {"images": f"{count:,}", "number": name, "deviation": number(deviation)}
        for method, interval in ("before", _bootstrap_interval), ("after", after):
            low, high = np.array([interval(x) for x in values]).T
            deviations = (high - low) / 2 / STANDARD_DEVIATIONS
            coverage = np.mean((low <= truth) & (truth <= high))
            row[method] = _cell(deviations, deviation, coverage)
        yield row


def distances(count: int, width: int, quick: bool) -> Iterator[Row]:
    """Yields rows for Fréchet and kernel distances of `count` images with `width` features."""
    num_sets = 60 if quick else min(200, 60_000 // count)
    num_before = 4 if quick else min(4, max(1, 1000 // count))
    num_after = 10 if quick else min(60, max(2, 6000 // count))
    num_subsets = max(5, 2000 // count)  # an evaluation has 100
    reference = draw("equal", NUM_REFERENCE, width, seed=0)[0]
    for case in CASES:
        samples, originals = draw(case, num_sets * count, width, seed=1)
        paired = case == "pairs"
        reference = originals if paired else reference
        sets = torch.arange(num_sets * count).split(count)
        row = {"images": f"{count:,}", "features": f"{width:,}", "samples": case}

        of_rows = frechet_of_rows(samples, reference, paired)
        values = np.array([of_rows(rows) for rows in sets])
        deviations: dict[str, list[float]] = {"before": [], "after": []}
        for seed, rows in enumerate(sets[:num_before]):
            before = of_rows
            if paired:
                before = frechet_of_rows(samples[rows], originals[rows], paired=False)
                rows = torch.arange(count)
            resampled = [before(rows[x]) for x in _resamples(count, seed)]
            deviations["before"].append(float(np.std(resampled, ddof=1)))
        for seed, rows in enumerate(sets[:num_after]):
            deviation = halves_deviation(_restricted(of_rows, rows), count, seed)
            deviations["after"].append(deviation)
        yield {**row, "distance": "Fréchet", **_cells(values, deviations)}

        results = []
        for seed, rows in enumerate(sets):
            pair = samples[rows], reference[rows] if paired else reference
            result = kernel_distance(*pair, paired=paired, num_subsets=num_subsets, seed=seed)
            assert result is not None and result.interval is not None
            results.append((result.distance, *result.interval))
        values, low, high = np.array(results).T
        deviations = {"after": list((high - low) / 2 / STANDARD_DEVIATIONS)}
        yield {**row, "distance": "kernel", **_cells(values, deviations)}


def draw(case: str, count: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns features of samples, and features of images that belong to them in pairs."""
    mixing = torch.randn(NUM_CAUSES, width, generator=torch.Generator().manual_seed(9)) / 8
    random = torch.Generator().manual_seed(seed)
    causes = torch.randn(count, NUM_CAUSES, generator=random)
    causes *= torch.arange(1, NUM_CAUSES + 1) ** -0.25 * 2  # the first ones have larger effects
    images = causes @ mixing + 0.2 * torch.randn(count, width, generator=random)
    if case == "pairs":
        samples = 0.95 * images + 0.1 * torch.randn(count, width, generator=random)
        return samples.relu(), images.relu()
    return (images + (0.2 if case == "shifted" else 0)).relu(), images.relu()


def _restricted(statistic: Callable[[Tensor], float], rows: Tensor) -> Callable[[Tensor], float]:
    return lambda numbers: statistic(rows[numbers])


def _resamples(count: int, seed: int) -> Iterator[Tensor]:
    rng = np.random.default_rng(seed)
    return (torch.from_numpy(rng.integers(0, count, count)) for _ in range(NUM_RESAMPLES))


def _bootstrap_interval(values: Tensor) -> Interval:
    means = [values[rows].double().mean().item() for rows in _resamples(len(values), 0)]
    return normal_interval(values.double().mean().item(), float(np.std(means, ddof=1)))


def _cells(values: np.ndarray, deviations: dict[str, list[float]]) -> Row:
    """Returns the true deviation of values, and how reported deviations compare with it."""
    deviation, errors = values.std(ddof=1), np.abs(values - values.mean())
    cells = {"mean": number(values.mean()), "deviation": number(deviation)}
    for method, numbers in deviations.items():
        reported = np.array(numbers)
        # the data sets' own intervals, or each of a few for all data sets
        limits = reported if len(reported) == len(values) else reported[:, None]
        coverage = np.mean(errors <= STANDARD_DEVIATIONS * limits)
        cells[method] = _cell(reported, deviation, coverage)
    return cells


def _cell(deviations: np.ndarray, deviation: float, coverage: float) -> str:
    return f"{deviations.mean() / deviation:.2f}, {coverage:.1%} ({len(deviations)})"


if __name__ == "__main__":
    main()
