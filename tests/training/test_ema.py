import copy

import pytest
import torch
from torch import nn

from taming.training.ema import ExponentialMovingAverage


def walk(model: nn.Linear, average: ExponentialMovingAverage, values: list[float]) -> None:
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update(model)


def test_the_average_in_closed_form() -> None:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 5.0)
    average = ExponentialMovingAverage(model, 0.3)
    values = [1.0, -2.0, 4.0, 0.5, 3.0]
    walk(model, average, values)
    expected = 5.0
    for n, value in enumerate(values):
        decay = min(0.3, (1 + n) / (10 + n))  # 0.1, 0.18, 0.25, 0.3, 0.3
        expected = decay * expected + (1 - decay) * value
    assert average.model.weight.item() == pytest.approx(expected, rel=1e-6)
    assert average.num_updates == 5


def test_a_reloaded_average_goes_on_where_it_was() -> None:
    model = nn.Linear(1, 1)
    average = ExponentialMovingAverage(model, 0.9)
    walk(model, average, [1.0, 2.0, 3.0])
    reloaded = ExponentialMovingAverage(model, 0.9)
    reloaded.load_state_dict(copy.deepcopy(average.state_dict()))
    for one in (average, reloaded):
        walk(model, one, [4.0, 5.0])
    assert reloaded.num_updates == 5
    assert torch.equal(reloaded.model.weight, average.model.weight)


def test_buffers_are_copied_and_nothing_is_trained() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5))
    average = ExponentialMovingAverage(model, 0.9)
    model(torch.randn(8, 2) + 3)
    average.train()
    average.update(model)
    assert torch.equal(average.model[0].running_mean, model[0].running_mean)
    assert average.model[0].num_batches_tracked == 1
    assert not any(module.training for module in average.modules())
    assert not any(p.requires_grad for p in average.parameters())
    assert all(p.requires_grad for p in model.parameters())
