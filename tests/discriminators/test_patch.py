from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import changed, weights
from torch import nn

from taming.discriminators import BlurPool, PatchDiscriminator, frozen
from taming.runtime.errors import UserError


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("norm", ["batch", "group", "actnorm"])
@pytest.mark.parametrize("blur", [False, True])
def test_the_number_of_parameters_equals_the_papers(norm: str, blur: bool) -> None:
    first = 3 * 64 * 16 + 64  # with a bias
    middle = [a * b * 16 + 2 * b for a, b in [(64, 128), (128, 256), (256, 512)]]  # with a norm
    last = {2: 256 * 16 + 1, 3: 512 * 16 + 1}
    with torch.device("meta"):
        three = PatchDiscriminator(norm=norm, blur=blur)
        two = PatchDiscriminator(num_layers=2, norm=norm, blur=blur)
    assert count(three) == first + sum(middle) + last[3] == 2_765_633
    assert count(two) == first + sum(middle[:2]) + last[2] == 663_361


@pytest.mark.parametrize(
    ("num_layers", "blur", "field"),
    [(1, False, 16), (2, False, 34), (3, False, 70), (1, True, 18), (2, True, 40), (3, True, 84)],
)
def test_a_score_sees_exactly_its_patch(num_layers: int, blur: bool, field: int) -> None:
    torch.manual_seed(0)
    network = PatchDiscriminator(base_channels=4, num_layers=num_layers, blur=blur)
    for module in network.modules():  # with group norm, a score sees everything
        if isinstance(module, nn.GroupNorm):
            module.forward = lambda x: x  # type: ignore[method-assign]
    images = torch.randn(1, 3, 112, 112, requires_grad=True)
    scores = network(images)
    middle = scores.shape[2] // 2
    scores[0, 0, middle, middle].backward()
    assert images.grad is not None
    rows = images.grad.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == field


@pytest.mark.parametrize("blur", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_smallest_resolution(num_layers: int, blur: bool) -> None:
    network = PatchDiscriminator(base_channels=4, num_layers=num_layers, blur=blur)
    smallest = 3 * 2**num_layers
    network.check_resolution((smallest, 64))
    assert network(torch.randn(1, 3, smallest, smallest)).shape == (1, 1, 1, 1)
    with pytest.raises(UserError, match=rf"{smallest} pixels, .* {smallest - 1}×64"):
        network.check_resolution((smallest - 1, 64))
    with pytest.raises(RuntimeError):
        network(torch.randn(1, 3, smallest - 2, smallest - 2))


def test_the_initialisation_follows_dcgan() -> None:
    torch.manual_seed(0)
    network = PatchDiscriminator(base_channels=64, num_layers=2, norm="batch")
    weights = [m.weight.detach().flatten() for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert torch.cat(weights).std().item() == pytest.approx(0.02, rel=0.02)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.mean().item() == pytest.approx(1.0, abs=0.02)
            assert module.bias.abs().sum() == 0


@pytest.mark.parametrize("norm", ["batch", "actnorm"])
def test_a_frozen_discriminator_normalises_by_the_batch_without_side_effects(norm: str) -> None:
    torch.manual_seed(0)
    network = PatchDiscriminator(base_channels=4, num_layers=2, norm=norm).train()
    images = torch.randn(4, 3, 16, 16)
    before = weights(network)
    with frozen(network):
        scores = network(images.requires_grad_())
    scores.sum().backward()
    assert images.grad is not None
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert not changed(network, before)
    assert torch.equal(scores, network(images))  # the same scores as the discriminator's own pass
    assert changed(network, before)


@pytest.mark.parametrize(("norm", "alone"), [("batch", False), ("group", True), ("actnorm", True)])
def test_scores_images_independently_tells_whether_scores_depend_on_the_batch(
    norm: str, alone: bool
) -> None:
    torch.manual_seed(0)
    network = PatchDiscriminator(base_channels=4, num_layers=1, norm=norm).train()
    network(torch.randn(2, 3, 16, 16))
    images = torch.randn(4, 3, 16, 16)
    scores = network(images[:2])
    difference = (scores - network(images)[:2]).abs().max() / scores.abs().max()
    assert network.scores_images_independently is alone
    assert bool(difference < 1e-5) is alone


@pytest.mark.parametrize("norm", ["batch", "group", "actnorm"])
def test_saving_and_loading(norm: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config: dict[str, Any] = {"image_channels": 1, "base_channels": 8, "num_layers": 2}
    config |= {"norm": norm, "blur": True}
    network = PatchDiscriminator(**config).train()
    images = torch.randn(2, 1, 16, 16)
    network(images)  # statistics
    network.save_pretrained(tmp_path / "discriminator")
    loaded = PatchDiscriminator.from_pretrained(tmp_path / "discriminator")
    assert loaded.config == config and not loaded.training
    assert torch.equal(loaded(images), network.eval()(images))


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (2, 3)])
def test_blur_pool_is_a_strided_convolution_with_its_filter(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    line = torch.tensor([1.0, 2.0, 1.0]) / 4
    kernel = torch.outer(line, line).expand(3, 1, 3, 3)
    expected = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, stride=2, groups=3)
    torch.testing.assert_close(BlurPool()(x), expected)


@pytest.mark.parametrize("side", [8, 9])
def test_blur_pool_keeps_sizes_and_positions_of_the_strided_convolution(side: int) -> None:
    # A filter with its weights in the middle gives the same ramp.
    convolution = nn.Conv2d(1, 1, 4, stride=2, padding=1, bias=False)
    nn.init.constant_(convolution.weight, 1 / 16)
    ramp = torch.arange(float(side)).expand(1, 1, side, side)
    strided = convolution(ramp)
    blurred = BlurPool()(F.conv2d(ramp, convolution.weight, padding=1))
    assert blurred.shape == strided.shape
    torch.testing.assert_close(blurred[..., 1:-1, 1:-1], strided[..., 1:-1, 1:-1])


@torch.no_grad()
def test_blurred_scores_depend_less_on_the_pixel_grid() -> None:
    changes = {}
    for blur in (False, True):
        torch.manual_seed(0)
        network = PatchDiscriminator(base_channels=8, num_layers=3, blur=blur)
        images = torch.randn(8, 3, 97, 97)
        scores, shifted = network(images[..., :-1, :-1]), network(images[..., 1:, 1:])
        difference = (scores - shifted)[..., 3:-3, 3:-3].std()
        changes[blur] = (difference / scores[..., 3:-3, 3:-3].std()).item()
    assert changes[True] < 0.5 * changes[False]
