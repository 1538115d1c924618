"""Codebook usage and likelihood, on numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from taming.evaluation import CodebookUsage, TokenLikelihood


def test_usage_and_perplexity_are_of_the_whole_set() -> None:
    metric = CodebookUsage(5)
    for counts in ([4, 0, 0, 0, 0], [0, 2, 2, 0, 0]):
        metric.update(torch.tensor(counts))
    values = metric.compute()
    frequencies = np.array([4, 2, 2]) / 8
    assert values["codebook_usage"].item() == pytest.approx(3 / 5)  # the batches' mean is 1.5 / 5
    expected = np.exp(-(frequencies * np.log(frequencies)).sum())  # the batches' mean is 1.5
    assert values["codebook_perplexity"].item() == pytest.approx(expected)
    assert expected == pytest.approx(2.828, abs=1e-3)


def test_perplexity_is_between_one_and_the_codebook_size() -> None:
    for counts, perplexity in ((torch.full((16,), 3), 16.0), (torch.eye(16)[3].long(), 1.0)):
        metric = CodebookUsage(16)
        metric.update(counts)
        assert metric.compute()["codebook_perplexity"].item() == pytest.approx(perplexity)


def test_usage_adds_up_over_ranks_and_starts_anew_after_reset() -> None:
    usage, other = CodebookUsage(3), CodebookUsage(3)
    usage.update(torch.tensor([1, 1, 1]))
    usage.reset()
    usage.update(torch.tensor([1, 0, 0]))
    other.update(torch.tensor([0, 1, 0]))
    usage.merge_state(other)
    found = {name: value.item() for name, value in usage.compute().items()}
    assert found == pytest.approx({"codebook_usage": 2 / 3, "codebook_perplexity": 2.0})


def test_likelihood_is_the_mean_over_all_tokens_however_they_come() -> None:
    # p = 1/4 for three tokens of the first batch, 1/2 for the one of the second
    metric = TokenLikelihood()
    metric.update(torch.zeros(1, 3, 4), torch.tensor([[0, 3, 1]]))
    metric.update(torch.tensor([[[0.0, 0.0, -torch.inf, -torch.inf]]]), torch.tensor([[1]]))
    assert metric.num_tokens == 4
    found = {name: value.item() for name, value in metric.compute().items()}
    bits = (3 * 2 + 1) / 4
    assert found["bits_per_token"] == pytest.approx(bits, rel=1e-7)
    assert found["nats_per_token"] == pytest.approx(bits * math.log(2), rel=1e-7)
    assert found["perplexity"] == pytest.approx(2**bits)
    assert metric.compute()["nats_per_token"].dtype == torch.float64
    metric.reset()
    metric.update(torch.full((1, 1, 2), torch.nan), torch.tensor([[1]]))
    assert math.isnan(metric.compute()["nats_per_token"])  # not left out
