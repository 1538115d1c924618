import pytest
import torch
from tiny_models import changed, weights

from taming.discriminators import ActNorm


def features(seed: int, b: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    channels = torch.tensor([0.01, 1.0, 5.0]).view(-1, 1, 1)
    return torch.randn(b, 3, 6, 7, generator=generator) * channels + torch.tensor(2.0)


def test_the_first_batch_gets_mean_0_and_variance_1() -> None:
    norm = ActNorm(3).train()
    output = norm(features(0))
    assert output.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-4)
    variance = output.var((0, 2, 3), unbiased=False)
    # The variance of the narrow channel, 1e-4, is not much larger than the epsilon, 1e-5.
    expected = features(0)[:, 0].var(unbiased=False).item()
    assert variance.tolist() == pytest.approx([expected / (expected + 1e-5), 1, 1], rel=1e-3)


def test_later_batches_change_nothing() -> None:
    norm = ActNorm(3).train()
    norm(features(0))
    before = weights(norm)
    second = features(1) + 10.0
    output = norm(second)
    assert not changed(norm, before)
    expected = second * norm.scale.view(-1, 1, 1) + norm.shift.view(-1, 1, 1)
    assert torch.equal(output, expected)
    assert (output.mean((0, 2, 3)) > 1).all()  # not normalised by its own statistics


def test_a_loaded_uninitialised_layer_is_initialised_by_the_next_batch() -> None:
    norm, fresh = ActNorm(3).train(), ActNorm(3)
    norm(features(0))
    norm.load_state_dict(fresh.state_dict())
    assert norm(features(1)).mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-4)
    assert norm.initialised


def test_evaluation_changes_nothing() -> None:
    norm = ActNorm(3).eval()
    before = weights(norm)
    assert torch.equal(norm(features(0)), features(0))
    assert not changed(norm, before)
    assert not norm.initialised


def test_a_constant_channel_stays_finite() -> None:
    norm = ActNorm(1).train()
    output = norm(torch.full((2, 1, 4, 4), 0.5))
    assert output.abs().max() < 1e-3
    assert norm.scale.item() == pytest.approx(1e-5**-0.5)


def test_statistics_are_computed_in_float32() -> None:
    norm = ActNorm(1).train()
    x = (torch.randn(8, 1, 32, 32, generator=torch.Generator().manual_seed(0)) + 8).bfloat16()
    norm(x)
    rows = x.double()
    assert norm.scale.item() == pytest.approx(rows.std(unbiased=False).item() ** -1, rel=1e-4)
    assert norm.shift.item() == pytest.approx(-(rows.mean() / rows.std()).item(), rel=1e-3)
