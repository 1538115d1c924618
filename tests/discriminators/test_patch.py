import pytest
import torch
from torch import nn

from taming.discriminators import PatchDiscriminator, frozen_statistics
from taming.errors import UserError


@pytest.mark.parametrize(("num_layers", "field"), [(1, 16), (2, 34), (3, 70)])
def test_a_score_sees_its_patch_and_no_more(num_layers: int, field: int) -> None:
    torch.manual_seed(0)
    network = PatchDiscriminator(base_channels=4, num_layers=num_layers)
    for module in network.modules():  # a group norm would let a score see everything
        if isinstance(module, nn.GroupNorm):
            module.forward = lambda x: x  # type: ignore[method-assign]
    images = torch.randn(1, 3, 96, 96, requires_grad=True)
    scores = network(images)
    middle = scores.shape[2] // 2
    scores[0, 0, middle, middle].backward()
    assert images.grad is not None
    rows = images.grad.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == field


@pytest.mark.parametrize(("num_layers", "side", "scores"), [(1, 6, 1), (2, 16, 2), (3, 24, 1)])
def test_scores_are_a_map(num_layers: int, side: int, scores: int) -> None:
    network = PatchDiscriminator(image_channels=1, base_channels=8, num_layers=num_layers)
    assert network(torch.randn(2, 1, side, side)).shape == (2, 1, scores, scores)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_smallest_resolution_is_the_smallest_that_works(num_layers: int) -> None:
    network = PatchDiscriminator(base_channels=4, num_layers=num_layers)
    smallest = 3 * 2**num_layers
    network.check_resolution((smallest, 64))
    assert network(torch.randn(1, 3, smallest, smallest)).shape == (1, 1, 1, 1)
    with pytest.raises(UserError, match=rf"{smallest} pixels .* {smallest - 1}×64"):
        network.check_resolution((smallest - 1, 64))
    with pytest.raises(RuntimeError):
        network(torch.randn(1, 3, smallest - 2, smallest - 2))


def test_the_initialisation_is_dcgans() -> None:
    torch.manual_seed(0)
    network = PatchDiscriminator(base_channels=64, num_layers=2, norm="batch")
    weights = [m.weight.detach().flatten() for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert torch.cat(weights).std().item() == pytest.approx(0.02, rel=0.02)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.mean().item() == pytest.approx(1.0, abs=0.02)
            assert module.bias.abs().sum() == 0


def test_frozen_statistics_normalise_by_the_batch_and_remember_nothing() -> None:
    torch.manual_seed(0)
    network = PatchDiscriminator(base_channels=4, num_layers=2, norm="batch").train()
    images = torch.randn(4, 3, 16, 16)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    assert len(before) == 6  # mean, variance and count of two layers
    with frozen_statistics(network):
        frozen = network(images)
    assert all(torch.equal(before[name], b) for name, b in network.named_buffers())
    assert torch.equal(frozen, network(images))  # the same scores as the discriminator's own pass
    assert not all(torch.equal(before[name], b) for name, b in network.named_buffers())


def test_frozen_statistics_end_with_an_exception() -> None:
    network = PatchDiscriminator(base_channels=4, num_layers=1, norm="batch")
    with pytest.raises(RuntimeError, match="channels"), frozen_statistics(network):
        network(torch.randn(1, 2, 16, 16))
    assert all(m.track_running_stats for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="'batch' or 'group', not 'layer'"):
        PatchDiscriminator(norm="layer")
    with pytest.raises(UserError, match="at least 1, not 0"):
        PatchDiscriminator(num_layers=0)
