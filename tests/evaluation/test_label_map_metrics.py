import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score

from taming.data.label_maps import one_hot
from taming.evaluation import LabelMapMetrics


def test_by_hand() -> None:
    metrics = LabelMapMetrics(4)
    truth = torch.tensor([[[0, 0, 0, 1, 1, 2]]])
    found = torch.tensor([[[0, 0, 1, 1, 1, 1]]])
    metrics.update(9 * one_hot(found, 4) - 30, one_hot(truth, 4))
    numbers = metrics.compute()
    assert numbers["pixel_accuracy"].item() == pytest.approx(4 / 6)
    # class 0: 2 of 3, class 1: 2 of 4, class 2: 0 of 1; class 3 occurs nowhere and does not count
    assert numbers["mean_iou"].item() == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)


def test_against_scikit_learn_over_uneven_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 5, (7, 6, 8), generator=generator)
    logits = torch.randn(7, 5, 6, 8, generator=generator) + 2 * one_hot(truth, 5)
    metrics = LabelMapMetrics(5)
    for part in (slice(0, 4), slice(4, 7)):
        metrics.update(logits[part], one_hot(truth[part], 5))
    expected, found = truth.flatten(), logits.argmax(1).flatten()
    numbers = metrics.compute()
    accuracy = accuracy_score(expected, found)
    assert 0.5 < accuracy < 0.95  # neither right nor wrong throughout
    assert numbers["pixel_accuracy"].item() == pytest.approx(accuracy, abs=1e-12)
    jaccard = jaccard_score(expected, found, average="macro")
    assert numbers["mean_iou"].item() == pytest.approx(jaccard, abs=1e-12)
    metrics.reset()
    metrics.update(one_hot(truth, 5), one_hot(truth, 5))
    assert [value.item() for value in metrics.compute().values()] == [1.0, 1.0]
