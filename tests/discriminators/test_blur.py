import pytest
import torch
import torch.nn.functional as F
from torch import nn

from taming.discriminators import BlurPool, PatchDiscriminator


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (2, 3)])
def test_it_is_a_strided_convolution_with_the_filter(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    line = torch.tensor([1.0, 2.0, 1.0]) / 4
    kernel = torch.outer(line, line).expand(3, 1, 3, 3)
    expected = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, stride=2, groups=3)
    torch.testing.assert_close(BlurPool()(x), expected)


@pytest.mark.parametrize("side", [8, 9])
def test_sizes_and_places_are_those_of_the_strided_convolution(side: int) -> None:
    # the same filter, its weights in its middle: a ramp comes out the same
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
