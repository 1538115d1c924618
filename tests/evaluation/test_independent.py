"""Numbers of features against independent implementations, on the same features."""

import numpy as np
import pytest
import torch
from prdc import compute_prdc
from scipy.spatial.distance import cdist
from torch import Tensor
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_isc import isc_features_to_metric
from torch_fidelity.metric_kid import kid_features_to_metric

from taming.evaluation.distances import (
    feature_statistics,
    frechet_distance,
    frechet_of_rows,
    kernel_distance,
)
from taming.evaluation.intervals import frechet_interval, mean_interval
from taming.evaluation.judges import probability_score
from taming.evaluation.neighbours import fidelity_and_diversity, memorisation, nearest


def features(count: int, width: int, seed: int, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=torch.Generator().manual_seed(9)) / width**0.5
    return (torch.randn(count, width, generator=generator) @ mixing + shift).relu()


def distance(first: Tensor, second: Tensor) -> float:
    means, covariances = zip(*map(feature_statistics, (first, second)), strict=True)
    return frechet_distance(*means, *covariances).item()


@pytest.mark.parametrize("count", [400, 20])  # more and fewer than the 64 features
def test_frechet_distance(count: int) -> None:
    first, second = features(count, 64, 0), features(300, 64, 1, shift=0.2)
    statistics = [fid_features_to_statistics(x) for x in (first, second)]
    expected = fid_statistics_to_metric(*statistics, verbose=False)
    expected = expected["frechet_inception_distance"]
    assert distance(first, second) == pytest.approx(expected, rel=1e-3)
    assert distance(first, first) == pytest.approx(0, abs=1e-6)
    every_row = torch.arange(count)
    assert frechet_of_rows(first, second)(every_row).item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("size", [50, 1000])
def test_kernel_distance(size: int) -> None:
    first, second = features(120, 32, 0), features(120, 32, 1, shift=0.3)
    expected = kid_features_to_metric(
        first, second, kid_subsets=400, kid_subset_size=min(size, 120), kid_kernel="poly",
        kid_kernel_poly_degree=3, kid_kernel_poly_gamma=None, kid_kernel_poly_coef0=1,
        rng_seed=0, verbose=False,
    )  # fmt: skip
    mean, deviation = kernel_distance(first, second, num_subsets=400, subset_size=size)
    exact = 1e-3 if size > 120 else 0.05  # other random subsets
    assert mean == pytest.approx(expected["kernel_inception_distance_mean"], rel=exact)
    if size > 120:
        assert deviation == 0


def test_the_score() -> None:
    logits = 3 * torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    expected = isc_features_to_metric(logits, splits=1, shuffle=False)["inception_score_mean"]
    assert probability_score(logits, num_splits=1) == pytest.approx(expected, rel=1e-3)
    sure = 100 * torch.eye(4).repeat(5, 1)
    assert probability_score(sure, num_splits=1) == pytest.approx(4)
    assert probability_score(torch.zeros(20, 4)) == pytest.approx(1)


def test_fidelity_and_diversity_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taming.evaluation.neighbours.BLOCK", 37)
    samples, reference = features(150, 8, 0, shift=0.4), features(190, 8, 1)
    expected = compute_prdc(reference.double().numpy(), samples.double().numpy(), nearest_k=5)
    found = fidelity_and_diversity(samples, reference)
    for name in ("precision", "recall", "density", "coverage"):
        assert 0 < expected[name] < 2
        assert found[name] == pytest.approx(expected[name], rel=1e-3), name
    apart = cdist(samples.numpy(), samples.numpy()).sum() / (150 * 149)
    assert found["diversity"] == pytest.approx(apart, rel=1e-3)
    same = fidelity_and_diversity(reference, reference)
    assert same["precision"] == same["recall"] == same["coverage"] == 1
    assert fidelity_and_diversity(samples[:5], reference) == {}  # too few neighbours


def test_copies_of_training_images_are_found() -> None:
    training, held_out = features(300, 8, 0), features(100, 8, 1)
    new = memorisation(features(100, 8, 2), held_out, training)
    copies = memorisation(training[:100] + 1e-3, held_out, training)
    assert new["close_to_training"] < 0.2 and copies["close_to_training"] == 1
    assert copies["training_distance"] < 0.1 * copies["training_distance_of_held_out"]
    distances, rows = nearest(held_out, training)
    expected = cdist(held_out.numpy(), training.numpy())
    np.testing.assert_allclose(distances.numpy(), expected.min(1), rtol=1e-3)
    np.testing.assert_array_equal(rows.numpy(), expected.argmin(1))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for seed in range(100):
        low, high = mean_interval(torch.rand(50, generator=generator), seed)
        hits += low < 0.5 < high
    assert 85 <= hits <= 100
    first, second = features(60, 16, 0), features(200, 16, 1, shift=0.2)
    value = distance(first, second)
    low, high = frechet_interval(value, first, second)
    assert low < value < high
    narrow = frechet_interval(distance(features(600, 16, 0), second), features(600, 16, 0), second)
    assert narrow[1] - narrow[0] < (high - low) / 2
