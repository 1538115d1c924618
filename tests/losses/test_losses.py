import math

import pytest
import torch

from taming.losses import (
    ADVERSARIAL_LOSSES,
    RECONSTRUCTION_LOSSES,
    adaptive_weight,
    cross_entropy_loss,
    hinge_discriminator_loss,
    hinge_generator_loss,
    non_saturating_generator_loss,
    vanilla_discriminator_loss,
)


def test_hinge_losses_by_hand() -> None:
    real, fake = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-2.0, 0.0, 1.0])
    # real: 0, 0.5, 2; fake: 0, 1, 2
    assert hinge_discriminator_loss(real, fake).item() == pytest.approx(0.5 * (2.5 / 3 + 1.0))
    assert hinge_generator_loss(fake).item() == pytest.approx(1 / 3)
    assert hinge_generator_loss(torch.tensor([4.0])).item() == -4.0  # a high score is good


def test_vanilla_and_non_saturating_losses_by_hand() -> None:
    odds = torch.tensor([3.0, 1.0]).log()  # the sigmoid gives 3/4 and 1/2
    real, fake = odds, -odds
    expected = -0.5 * (math.log(3 / 4 * 1 / 2) / 2 + math.log(3 / 4 * 1 / 2) / 2)
    assert vanilla_discriminator_loss(real, fake).item() == pytest.approx(expected)
    expected = -math.log(1 / 4 * 1 / 2) / 2
    assert non_saturating_generator_loss(fake).item() == pytest.approx(expected)


def test_losses_far_from_0_stay_finite() -> None:
    far = torch.tensor([1000.0])
    assert vanilla_discriminator_loss(far, -far).item() == 0.0
    assert vanilla_discriminator_loss(-far, far).item() == 1000.0
    assert non_saturating_generator_loss(-far).item() == 1000.0


def test_each_game_has_its_two_losses() -> None:
    real, fake = torch.tensor([0.5]), torch.tensor([0.25])
    hinge, vanilla = 0.5 * (0.5 + 1.25), 0.5 * math.log((1 + math.exp(-0.5)) * (1 + math.exp(0.25)))
    expected = {
        "hinge": (hinge, -0.25),
        "vanilla": (vanilla, -0.25),
        "non_saturating": (vanilla, math.log(1 + math.exp(-0.25))),
    }
    assert ADVERSARIAL_LOSSES.keys() == expected.keys()
    for name, (discriminator, generator) in ADVERSARIAL_LOSSES.items():
        found = (discriminator(real, fake).item(), generator(fake).item())
        assert found == pytest.approx(expected[name])


def test_pixel_losses_are_means() -> None:
    images = torch.zeros(2, 3, 4, 4)
    for name, expected in (("l1", 0.5), ("l2", 0.25)):
        loss = RECONSTRUCTION_LOSSES[name](images + 0.5, images)
        assert loss.item() == pytest.approx(expected)


def test_the_cross_entropy_is_that_of_each_pixels_class() -> None:
    label_maps = torch.tensor([[0, 2]]).eq(torch.arange(3).view(1, 3, 1, 1)).float()  # (1 3 1 2)
    logits = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 3.0]]).T.view(1, 3, 1, 2).requires_grad_()
    first, second = math.log(math.e + 2) - 1, math.log(2 + math.e**3) - 3
    loss = cross_entropy_loss(logits, label_maps)
    assert loss.item() == pytest.approx((first + second) / 2, rel=1e-6)
    loss.backward()
    # its gradient is (softmax − one-hot) / number of pixels
    expected = (logits.detach().softmax(1) - label_maps) / 2
    torch.testing.assert_close(logits.grad, expected)
    # logits that say nothing cost ln(number of classes), whatever the map
    assert cross_entropy_loss(torch.zeros(1, 3, 1, 2), label_maps).item() == pytest.approx(
        math.log(3)
    )


def test_the_adaptive_weight_is_the_papers_quotient() -> None:
    reconstruction = torch.tensor([[3.0, 4.0]], requires_grad=True)
    adversarial = torch.tensor([[0.0, 0.1]], requires_grad=True)
    weight = adaptive_weight(reconstruction, adversarial)
    assert weight.item() == pytest.approx(5.0 / (0.1 + 1e-4))
    assert not weight.requires_grad


def test_the_adaptive_weight_is_bounded() -> None:
    assert adaptive_weight(torch.ones(4) * 1e3, torch.zeros(4)).item() == 1e4
    assert adaptive_weight(torch.zeros(4), torch.ones(4)).item() == 0.0
