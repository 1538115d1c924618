"""Intervals of means, of shares and of any statistic."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from taming.evaluation.intervals import halves_deviation, mean_interval, share_interval


@pytest.mark.parametrize(("hits", "count"), [(0, 20), (4, 20), (20, 20), (1, 3), (899, 1000)])
def test_share_interval_equals_scipys_wilson_interval(hits: int, count: int) -> None:
    expected = binomtest(hits, count).proportion_ci(method="wilson")
    low, high = share_interval(torch.arange(count) < hits)
    assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-4, abs=1e-12)
    assert 0 <= low < high <= 1


def test_mean_interval_has_the_standard_error() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 7.0])
    error = values.double().std().item() / 2
    assert mean_interval(values) == pytest.approx((3.5 - 1.96 * error, 3.5 + 1.96 * error))
    assert mean_interval(values[:1]) is None


def test_halves_have_the_standard_error_of_a_mean() -> None:
    values = torch.randn(501, generator=torch.Generator().manual_seed(0))
    sizes = set()

    def mean(rows: Tensor) -> float:
        sizes.add(len(rows))
        assert len(rows.unique()) == len(rows)
        return values[rows].mean().item()

    expected = values.std().item() / np.sqrt(501)
    assert halves_deviation(mean, 501) == pytest.approx(expected, rel=0.25)
    assert sizes == {250}
