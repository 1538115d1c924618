"""Their patch discriminator's layout, against the layers written out."""

import pytest
import torch
import torch.nn.functional as F

from taming.discriminators import PatchDiscriminator
from taming.errors import UserError
from taming.importers.layouts import patch_discriminator
from taming.importers.weights import ForeignWeights

Weights = dict[str, torch.Tensor]


def foreign(actnorm: bool, num_layers: int = 2, channels: int = 3) -> Weights:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    weights = {"d.main.0.weight": random(4, channels, 4, 4), "d.main.0.bias": random(4)}
    index, width = 2, 4
    for _ in range(num_layers):
        weights[f"d.main.{index}.weight"] = random(2 * width, width, 4, 4)
        width *= 2
        name = f"d.main.{index + 1}"
        if actnorm:
            weights[f"d.main.{index}.bias"] = random(width)
            weights[f"{name}.loc"] = random(1, width, 1, 1)
            weights[f"{name}.scale"] = random(1, width, 1, 1)
            weights[f"{name}.initialized"] = torch.tensor(1, dtype=torch.uint8)
        else:
            weights[f"{name}.weight"], weights[f"{name}.bias"] = random(width), random(width)
            weights[f"{name}.running_mean"] = random(width)
            weights[f"{name}.running_var"] = random(width).abs() + 0.5
            weights[f"{name}.num_batches_tracked"] = torch.tensor(9)
        index += 3
    weights[f"d.main.{index}.weight"] = random(1, width, 4, 4)
    weights[f"d.main.{index}.bias"] = random(1)
    return weights


def scores(weights: Weights, images: torch.Tensor, num_layers: int = 2) -> torch.Tensor:
    def get(name: str) -> torch.Tensor | None:
        return weights.get(f"d.main.{name}")

    def convolution(x: torch.Tensor, index: int, stride: int) -> torch.Tensor:
        kernel = weights[f"d.main.{index}.weight"]
        return F.conv2d(x, kernel, get(f"{index}.bias"), stride, padding=1)

    x = F.leaky_relu(convolution(images, 0, 2), 0.2)
    for layer in range(num_layers):
        index = 2 + 3 * layer
        x = convolution(x, index, 2 if layer < num_layers - 1 else 1)
        loc, scale = get(f"{index + 1}.loc"), get(f"{index + 1}.scale")
        if loc is not None and scale is not None:
            x = scale * (x + loc)
        else:
            names = ("running_mean", "running_var", "weight", "bias")
            x = F.batch_norm(x, *(get(f"{index + 1}.{name}") for name in names))
        x = F.leaky_relu(x, 0.2)
    return convolution(x, 2 + 3 * num_layers, 1)


@pytest.mark.parametrize("actnorm", [False, True])
def test_scores_are_those_of_their_layers(actnorm: bool) -> None:
    theirs = foreign(actnorm)
    weights = ForeignWeights(theirs)
    saved = patch_discriminator(weights, "d.", image_channels=3)
    weights.finish()
    assert saved is not None
    assert (saved.config["num_layers"], saved.config["base_channels"]) == (2, 4)
    discriminator = PatchDiscriminator.from_saved(saved)
    images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    expected = scores(theirs, images)
    torch.testing.assert_close(discriminator(images), expected, rtol=0, atol=1e-5)
    if actnorm:  # it is initialised: a training batch changes nothing
        torch.testing.assert_close(discriminator.train()(images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("actnorm", [False, True])
def test_every_key_is_needed(actnorm: bool) -> None:
    for name in foreign(actnorm):
        theirs = foreign(actnorm)
        del theirs[name]
        weights = ForeignWeights(theirs)
        patch_discriminator(weights, "d.", image_channels=3)
        with pytest.raises(UserError, match="do not fit"):
            weights.finish()


def test_one_that_sees_a_condition_is_dropped_by_name() -> None:
    weights = ForeignWeights(foreign(False, channels=6))
    assert patch_discriminator(weights, "d.", image_channels=3) is None
    assert weights.finish()[1].startswith("dropped d.* (16): it judges 6 channels")


@pytest.mark.parametrize("actnorm", [False, True])
def test_no_memory_is_taken_for_weights_that_are_not_there(actnorm: bool) -> None:
    """A first layer of 10 MB says that the second has 320 GB."""
    theirs = foreign(actnorm)
    theirs["d.main.0.weight"] = torch.zeros(50_000, 3, 1, 1).expand(50_000, 3, 4, 4)
    weights = ForeignWeights(theirs)
    patch_discriminator(weights, "d.", image_channels=3)
    with pytest.raises(UserError, match=r"main\.\d\.(weight|scale) is .* not \(100000,"):
        weights.finish()
