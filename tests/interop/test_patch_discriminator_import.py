"""A patch discriminator with ActNorm, compared with its layers written out.

The references cover batch normalisation.
"""

import pytest
import torch
import torch.nn.functional as F

from taming.discriminators import PatchDiscriminator
from taming.interop.layouts import patch_discriminator
from taming.interop.weights import ForeignWeights
from taming.runtime.errors import UserError

Weights = dict[str, torch.Tensor]


def foreign(channels: int = 3) -> Weights:
    """Returns random weights of two strided layers."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    weights = {}
    for index, inputs, outputs in ((0, channels, 4), (2, 4, 8), (5, 8, 16), (8, 16, 1)):
        weights[f"d.main.{index}.weight"] = random(outputs, inputs, 4, 4)
        weights[f"d.main.{index}.bias"] = random(outputs)
    for index, width in ((3, 8), (6, 16)):
        weights[f"d.main.{index}.loc"] = random(1, width, 1, 1)
        weights[f"d.main.{index}.scale"] = random(1, width, 1, 1)
        weights[f"d.main.{index}.initialized"] = torch.tensor(1, dtype=torch.uint8)
    return weights


def scores(weights: Weights, images: torch.Tensor) -> torch.Tensor:
    x = images
    for index, stride in ((0, 2), (2, 2), (5, 1), (8, 1)):
        kernel, bias = (weights[f"d.main.{index}.{name}"] for name in ("weight", "bias"))
        x = F.conv2d(x, kernel, bias, stride, padding=1)
        if index in (2, 5):
            loc, scale = (weights[f"d.main.{index + 1}.{name}"] for name in ("loc", "scale"))
            x = scale * (x + loc)
        x = F.leaky_relu(x, 0.2) if index < 8 else x
    return x


def test_scores_match_the_written_out_layers() -> None:
    original = foreign()
    weights = ForeignWeights(original)
    saved_model = patch_discriminator(weights, "d.", image_channels=3)
    weights.finish()
    assert saved_model is not None
    assert (saved_model.config["num_layers"], saved_model.config["base_channels"]) == (2, 4)
    discriminator = PatchDiscriminator.from_saved(saved_model)
    images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    expected = scores(original, images)
    torch.testing.assert_close(discriminator(images), expected, rtol=0, atol=1e-5)
    # ActNorm is initialised, so a training batch changes nothing
    torch.testing.assert_close(discriminator.train()(images), expected, rtol=0, atol=1e-5)


def test_every_weight_is_required() -> None:
    for name in foreign():
        original = foreign()
        del original[name]
        weights = ForeignWeights(original)
        with pytest.raises(UserError, match="do not match"):
            patch_discriminator(weights, "d.", image_channels=3)
            weights.finish()


def test_a_conditional_discriminator_is_dropped() -> None:
    weights = ForeignWeights(foreign(channels=6))
    assert patch_discriminator(weights, "d.", image_channels=3) is None
    assert weights.finish()[1].startswith("dropped d.* (14): it takes 6 channels")


def test_missing_weights_need_no_memory() -> None:
    """A first layer of 10 MB implies a second layer of 320 GB."""
    original = foreign()
    original["d.main.0.weight"] = torch.zeros(50_000, 3, 1, 1).expand(50_000, 3, 4, 4)
    with pytest.raises(UserError, match=r"main\.\d\.(weight|scale) is .* instead of \(100000,"):
        patch_discriminator(ForeignWeights(original), "d.", image_channels=3)
