from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

from taming.discriminators import DifferentiableAugmentation

ALL = ("color", "translation", "cutout")


def augment(images: torch.Tensor, *policy: str, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return DifferentiableAugmentation(policy)(images)


def photos(b: int, c: int = 3, h: int = 16, w: int = 24) -> torch.Tensor:
    return torch.rand(b, c, h, w, generator=torch.Generator().manual_seed(7)) * 2 - 1


@pytest.mark.parametrize("policy", [(), [], None])
def test_an_empty_policy_changes_nothing(policy: Sequence[str] | None) -> None:
    images = photos(2)
    random_state = torch.get_rng_state()
    assert DifferentiableAugmentation(policy)(images) is images
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_every_image_gets_its_own_random_numbers(name: str, channels: int) -> None:
    images = photos(1, channels).expand(6, -1, -1, -1)
    augmented = augment(images, name)
    assert (augmented.shape, augmented.dtype) == (images.shape, images.dtype)
    assert len({tuple(image.flatten().tolist()) for image in augmented}) == 6
    assert DifferentiableAugmentation([name]).state_dict() == {}


def test_the_augmentations_apply_in_order() -> None:
    images = torch.ones(2, 3, 16, 16)
    torch.manual_seed(0)
    step_by_step = images
    for name in ("cutout", "translation"):
        step_by_step = DifferentiableAugmentation([name])(step_by_step)
    assert torch.equal(augment(images, "cutout", "translation"), step_by_step)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("policy", [*((name,) for name in ALL), ALL])
def test_gradients_equal_numeric_gradients(channels: int, policy: tuple[str, ...]) -> None:
    images = photos(1, channels, 8, 8).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: augment(x, *policy), (images,))


def test_brightness_and_contrast() -> None:
    images = photos(1000, 1)
    augmented = augment(images, "color")
    brightness = augmented.mean((1, 2, 3)) - images.mean((1, 2, 3))
    contrast = augmented.std((1, 2, 3)) / images.std((1, 2, 3))
    for value, low, high in ((brightness, -0.5, 0.5), (contrast, 0.5, 1.5)):
        assert low - 1e-4 <= value.min() < low + 0.01
        assert high - 0.01 < value.max() <= high + 1e-4
        assert value.mean().item() == pytest.approx((low + high) / 2, abs=0.03)  # σ/√n = 0.009
    expected = augmented.mean((1, 2, 3), keepdim=True)
    expected = expected + contrast.view(-1, 1, 1, 1) * (images - images.mean((1, 2, 3), True))
    assert (augmented - expected).abs().max() < 1e-5 * expected.abs().max()


def test_saturation_scales_the_distance_from_grey() -> None:
    images = photos(1000)
    augmented = augment(images, "color")
    grey, new_grey = images.mean(1, keepdim=True), augmented.mean(1, keepdim=True)
    contrast = new_grey.std((1, 2, 3)) / grey.std((1, 2, 3))
    product = (augmented - new_grey).std((1, 2, 3)) / (images - grey).std((1, 2, 3))
    saturation = product / contrast
    assert 0 <= saturation.min() < 0.02
    assert 1.98 < saturation.max() <= 2 + 1e-3
    assert saturation.mean().item() == pytest.approx(1.0, abs=0.06)  # σ/√n = 0.018
    chroma = product.view(-1, 1, 1, 1) * (images - grey)
    assert (augmented - new_grey - chroma).abs().max() < 1e-5 * chroma.abs().max()


def test_translation_moves_by_up_to_an_eighth_and_fills_with_grey() -> None:
    image = photos(1)[0]  # 16 × 24: by up to 2 and 3 pixels
    padded = F.pad(image, (3, 3, 2, 2))
    shifted = {
        (dy, dx): padded[:, 2 - dy : 18 - dy, 3 - dx : 27 - dx]
        for dy in range(-2, 3)
        for dx in range(-3, 4)
    }
    counts = dict.fromkeys(shifted, 0)
    for translated in augment(image.expand(700, -1, -1, -1), "translation"):
        (offset,) = [o for o, expected in shifted.items() if torch.equal(translated, expected)]
        counts[offset] += 1
    # each of the 35 offsets is equally probable: 20 ± 4.4
    assert min(counts.values()) >= 5 and max(counts.values()) <= 40


@pytest.mark.parametrize("side", [8, 9])
def test_cutout_covers_half_of_each_side_with_its_centre_in_the_image(side: int) -> None:
    images = torch.ones(3000, 2, side, 12)
    cut = augment(images, "cutout") == 0
    assert torch.equal(cut[:, 0], cut[:, 1])
    rows, columns = cut[:, 0].any(2).sum(1), cut[:, 0].any(1).sum(1)
    area = cut[:, 0].sum((1, 2))
    assert torch.equal(area, rows * columns)  # a rectangle
    # 4 rows are centred on one of 9 edges (of 9 rows: 10); at the outer four the image cuts them
    assert sorted(set(rows.tolist())) == [2, 3, 4]
    assert sorted(set(columns.tolist())) == [3, 4, 5, 6]
    mean_rows = {8: (2 + 3 + 5 * 4 + 3 + 2) / 9, 9: (2 + 3 + 6 * 4 + 3 + 2) / 10}
    mean_columns = (3 + 4 + 5 + 7 * 6 + 5 + 4 + 3) / 13
    assert area.double().mean().item() == pytest.approx(mean_rows[side] * mean_columns, rel=0.03)
