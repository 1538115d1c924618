"""Likelihood, agreement and distances of unpaired sets, on numbers worked out by hand."""

import math

import pytest
import torch
from torch import nn

from taming.evaluation import ClassAgreement, FeatureStatistics, FrechetDistance, TokenLikelihood


def test_likelihood_is_the_mean_over_all_tokens_however_they_come() -> None:
    # p = 1/4 for three tokens of the first batch, 1/2 for the one of the second
    metric = TokenLikelihood()
    metric.update(torch.zeros(1, 3, 4), torch.tensor([[0, 3, 1]]))
    metric.update(torch.tensor([[[0.0, 0.0, -torch.inf, -torch.inf]]]), torch.tensor([[1]]))
    found = {name: value.item() for name, value in metric.compute().items()}
    assert found["bits_per_token"] == pytest.approx((3 * 2 + 1) / 4)
    assert found["nats_per_token"] == pytest.approx((3 * 2 + 1) / 4 * math.log(2))
    assert found["perplexity"] == pytest.approx(2 ** ((3 * 2 + 1) / 4))


def test_agreement_by_class() -> None:
    metric = ClassAgreement(3)
    metric.update(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]))
    metric.update(torch.tensor([1, 0]), torch.tensor([1, 1]))
    assert metric.counts.tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]
    found = metric.compute()
    assert found["agreement"].item() == pytest.approx(3 / 5)
    by_class = found["agreement_by_class"].tolist()
    assert by_class[:2] == pytest.approx([2 / 3, 1 / 2])
    assert math.isnan(by_class[2])


class Pixels(nn.Module):
    """Three pixels as they are."""

    num_features = 3

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)


def test_distance_of_sets_of_different_size() -> None:
    # Of (±x, ±y) in all combinations mean and covariance are known: diag(x², y²)·n/(n - 1).
    def corners(x: float, y: float, times: int, shift: float = 0.0) -> torch.Tensor:
        signs = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
        points = torch.cat([signs * torch.tensor([x, y]), torch.full((4, 1), shift)], 1)
        return points.repeat(times, 1)[:, None, None, :]  # (b 1 1 3)

    first, second = FeatureStatistics(Pixels()), FeatureStatistics(Pixels())
    for part in corners(0.5, 0.2, 3).split(5):
        first.update(part)
    second.update(corners(0.1, 0.4, 5, shift=0.3))
    assert (first.num_images, second.num_images) == (12, 20)
    roots = [math.sqrt(12 / 11), math.sqrt(20 / 19)]  # of n / (n - 1)
    deviations = [(0.5 * roots[0], 0.1 * roots[1]), (0.2 * roots[0], 0.4 * roots[1])]
    expected = 0.3**2 + sum((a - b) ** 2 for a, b in deviations)
    assert first.distance(second) == pytest.approx(expected, rel=1e-6)
    assert second.distance(first) == pytest.approx(expected, rel=1e-6)
    assert first.distance(first) == pytest.approx(0, abs=1e-9)
    assert math.isnan(first.distance(FeatureStatistics(Pixels())))


def test_distance_is_that_of_pairs_where_the_sets_are_equally_large() -> None:
    torch.manual_seed(0)
    images, others = torch.rand(2, 20, 1, 1, 3)
    paired = FrechetDistance(Pixels())
    paired.update(others, images)
    first, second = FeatureStatistics(Pixels()), FeatureStatistics(Pixels())
    first.update(images)
    second.update(others)
    expected = paired.compute()["frechet_distance"].item()
    assert first.distance(second) == pytest.approx(expected, rel=1e-6)
