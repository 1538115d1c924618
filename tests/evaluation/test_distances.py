"""Fréchet and kernel distances against independent implementations, and their intervals."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from random_features import features
from torch import Tensor, nn
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_kid import kid_features_to_metric
from torchmetrics.image.fid import FrechetInceptionDistance

from taming.evaluation.distances import (
    FrechetDistance,
    feature_statistics,
    frechet_distance,
    frechet_interval,
    kernel_distance,
)
from taming.evaluation.intervals import halves_deviation


class RandomFeatures(nn.Module):
    """Six features of an image, correlated and not normal."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randn(3 * 8 * 8, 6, generator=generator) / 8)

    def forward(self, images: Tensor) -> Tensor:
        return (images.flatten(1).float() @ self.weight).relu() + 1


def sets(count: int = 40) -> tuple[Tensor, Tensor]:
    """Reconstructions and images that differ in mean and covariance."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, 3, 8, 8, generator=generator) * 2 - 1
    noise = torch.randn(count, 3, 8, 8, generator=generator)
    return (0.6 * images + 0.2 * noise + 0.1).clamp(-1, 1), images


def measured(reconstructions: Tensor, images: Tensor, batch_size: int = 40) -> float:
    metric = FrechetDistance(RandomFeatures())
    for batch in zip(reconstructions.split(batch_size), images.split(batch_size), strict=True):
        metric.update(*batch)
    return metric.compute()["frechet_distance"].item()


def distance(first: Tensor, second: Tensor) -> float:
    means, covariances = zip(*map(feature_statistics, (first, second)), strict=True)
    return frechet_distance(*means, *covariances).item()


def test_distance_equals_scipys_matrix_root_and_torchmetrics() -> None:
    reconstructions, images = sets()
    first, second = (RandomFeatures()(x).double().numpy() for x in (reconstructions, images))
    covariances = [np.cov(x, rowvar=False) for x in (first, second)]
    root = np.asarray(scipy.linalg.sqrtm(covariances[0] @ covariances[1])).real
    means = first.mean(0) - second.mean(0)
    expected = means @ means + np.trace(covariances[0] + covariances[1] - 2 * root)
    assert expected > 0.01
    assert measured(reconstructions, images) == pytest.approx(expected, rel=1e-6)
    library = FrechetInceptionDistance(RandomFeatures(), normalize=True)
    library.update(reconstructions, real=False)
    library.update(images, real=True)
    assert library.compute().item() == pytest.approx(expected, rel=1e-5)  # a float32 number


def test_distance_of_known_normal_distributions() -> None:
    # commuting covariances: ‖Δμ‖² + Σ (√a − √b)²
    first, second = torch.tensor([1.0, 4.0, 9.0]), torch.tensor([4.0, 4.0, 1.0])
    random = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation = torch.linalg.qr(random)[0]
    covariances = [rotation @ torch.diag(x.double()) @ rotation.T for x in (first, second)]
    zero = torch.zeros(3, dtype=torch.float64)
    actual = frechet_distance(zero, zero + 2, *covariances)
    assert actual.item() == pytest.approx(3 * 4 + 1 + 0 + 4, rel=1e-12)


def test_distance_of_fewer_images_than_features() -> None:
    # rank 4 of 64: the matrix root of a product that is singular
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(5, 64, generator=generator).double() for _ in range(2))
    covariances = [torch.cov(x.T) for x in (first, second)]
    actual = frechet_distance(first.mean(0), second.mean(0), *covariances)
    # Tr (Σ₁Σ₂)^½ is the nuclear norm of X₁X₂ᵀ / (n − 1)
    centred = [x - x.mean(0) for x in (first, second)]
    root = np.linalg.norm((centred[0] @ centred[1].T).numpy(), "nuc") / 4
    means = (first.mean(0) - second.mean(0)).square().sum()
    expected = means + covariances[0].trace() + covariances[1].trace() - 2 * root
    assert actual.item() == pytest.approx(expected.item(), rel=1e-10)
    same = frechet_distance(first.mean(0), first.mean(0), covariances[0], covariances[0])
    assert same.item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("count", [400, 20])  # more and fewer than the 64 features
def test_distance_equals_torch_fidelitys(count: int) -> None:
    first, second = features(count, 64, 0), features(300, 64, 1, shift=0.2)
    statistics = [fid_features_to_statistics(x) for x in (first, second)]
    numbers = fid_statistics_to_metric(*statistics, verbose=False)
    expected = numbers["frechet_inception_distance"]
    assert distance(first, second) == pytest.approx(expected, rel=1e-3)
    assert distance(first, first) == pytest.approx(0, abs=1e-6)


def test_one_image_gives_the_distance_of_the_features() -> None:
    reconstructions, images = sets(1)
    expected = (RandomFeatures()(reconstructions) - RandomFeatures()(images)).square().sum().item()
    assert measured(reconstructions, images) == pytest.approx(expected, rel=1e-6)


def test_batches_processes_and_resets_give_one_number() -> None:
    reconstructions, images = sets()
    whole = measured(reconstructions, images)
    assert measured(reconstructions, images, 7) == pytest.approx(whole, rel=1e-6)
    outside = torch.where(reconstructions.abs() == 1, 3 * reconstructions, reconstructions)
    assert (outside != reconstructions).any()
    assert measured(outside, images) == whole  # clamped
    ranks = [FrechetDistance(RandomFeatures()) for _ in range(2)]
    ranks[0].update(-images, images)
    ranks[0].reset()
    for rank, part in zip(ranks, (slice(0, 13), slice(13, 40)), strict=True):
        rank.update(reconstructions[part], images[part])
    ranks[0].merge_state(ranks[1])  # adds states as a reduction over ranks does
    assert ranks[0].compute()["frechet_distance"].item() == pytest.approx(whole, rel=1e-6)
    assert ranks[0].products.dtype == torch.float64


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_distance_of_nothing_is_not_a_number() -> None:
    metric = FrechetDistance(RandomFeatures())
    assert math.isnan(metric.compute()["frechet_distance"])
    reconstructions, images = sets()
    metric.update(reconstructions * torch.nan, images)  # of a training that diverged
    assert math.isnan(metric.compute()["frechet_distance"])


@pytest.mark.parametrize("size", [50, 1000])
def test_kernel_distance_equals_torch_fidelitys(size: int) -> None:
    first, second = features(120, 32, 0), features(120, 32, 1, shift=0.3)
    expected = kid_features_to_metric(
        first, second, kid_subsets=400, kid_subset_size=min(size, 120), kid_kernel="poly",
        kid_kernel_poly_degree=3, kid_kernel_poly_gamma=None, kid_kernel_poly_coef0=1,
        rng_seed=0, verbose=False,
    )  # fmt: skip
    actual = kernel_distance(first, second, paired=False, num_subsets=400, subset_size=size)
    assert actual is not None
    tolerance = 1e-3 if size > 120 else 0.05  # other random subsets
    expected_mean = expected["kernel_inception_distance_mean"]
    assert actual.distance == pytest.approx(expected_mean, rel=tolerance)
    if size > 120:
        assert actual.deviation is None  # one subset
    else:
        deviation = expected["kernel_inception_distance_std"]
        assert actual.deviation == pytest.approx(deviation, rel=0.2)


def noisy_pairs(count: int, width: int, noise: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, width, generator=generator, dtype=torch.float64)
    return images + noise * torch.randn(images.shape, generator=generator).double(), images


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_kernel_distance_of_pairs_has_the_known_expectation(noise: float) -> None:
    # u = xᵀy / f of independent normal vectors has the moments 0, σ²τ² / f and 0, so the kernel
    # (u + 1)³ has the mean 1 + 3 σ²τ² / f, and the discrepancy is 3 (σ² − τ²)² / f
    width, variance = 16, 1 + noise**2
    expected = 3 * (variance - 1) ** 2 / width
    pairs = noisy_pairs(1500, width, noise)
    actual = kernel_distance(*pairs, paired=True, num_subsets=40, subset_size=500)
    assert actual is not None and actual.interval is not None
    low, high = actual.interval
    assert low < expected < high
    assert high - low < noise**2 / 100
    # an image and its own reconstruction are similar, which makes this estimate too small
    wrong = kernel_distance(*pairs, paired=False, subset_size=1500)
    assert wrong is not None and wrong.distance < -0.005


def test_intervals_of_pairs_are_narrow() -> None:
    def estimate(seed: int) -> tuple[float, float, float]:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(200, 16, generator=generator)
        samples = 0.9 * images + 0.05 * torch.randn(200, 16, generator=generator)
        value = distance(samples, images)
        interval = frechet_interval(value, samples, images, paired=True)
        alone = frechet_interval(value, samples, images, paired=False)
        assert interval is not None and alone is not None
        return value, (interval[1] - interval[0]) / 2, (alone[1] - alone[0]) / 2

    values, half_widths, half_widths_alone = np.array([estimate(i) for i in range(30)]).T
    deviation = values.std(ddof=1)
    assert 1.96 * deviation * 0.7 < half_widths.mean() < 1.96 * deviation * 1.7
    assert half_widths_alone.mean() > 5 * half_widths.mean()


@pytest.mark.parametrize(("count", "width"), [(60, 96), (120, 16)])
def test_half_distances_equal_the_distance(count: int, width: int) -> None:
    # the fast distance of halves against `frechet_distance`, with a feature that is always zero
    samples, reference = features(count, width, 0, 0.2), features(count, width, 1)
    samples[:, 3] = reference[:, 3] = 0
    for paired in (True, False):

        def statistic(rows: Tensor, paired: bool = paired) -> float:
            return distance(samples[rows], reference[rows] if paired else reference)

        expected = 1.96 * halves_deviation(statistic, count)
        interval = frechet_interval(100.0, samples, reference, paired=paired)
        assert interval == pytest.approx((100 - expected, 100 + expected), rel=1e-6)
    assert frechet_interval(1.0, samples[:3], reference, paired=False) is None
    assert frechet_interval(0.1, samples, reference + 9, paired=False)[0] == 0  # type: ignore[index]


@pytest.mark.parametrize(("count", "width"), [(40, 64), (200, 8)])  # less and more than features
def test_intervals_hold_the_expectation_about_as_often_as_they_promise(
    count: int, width: int
) -> None:
    reference = features(300, width, 1000)
    rows = []
    for seed in range(60):
        samples = features(count, width, seed, 0.2)
        kernel = kernel_distance(samples, reference, paired=False, num_subsets=20)
        value = distance(samples, reference)
        interval = frechet_interval(value, samples, reference, paired=False)
        assert kernel is not None and kernel.interval is not None and interval is not None
        rows.append(((value, *interval), (kernel.distance, *kernel.interval)))
    values, low, high = np.array(rows).transpose(2, 0, 1)  # (60 2)
    mean, deviation = values.mean(0), values.std(0, ddof=1)
    assert ((low < mean) & (mean < high)).mean(0).min() >= 0.88
    ratios = ((high - low) / 3.92 / deviation).mean(0)  # reported to true deviation
    assert ratios.min() > 0.75 and ratios.max() < 1.6
