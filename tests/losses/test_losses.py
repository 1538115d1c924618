import pytest
import torch

from taming.losses import (
    adaptive_weight,
    hinge_discriminator_loss,
    hinge_generator_loss,
    l1_loss,
    l2_loss,
)


def test_hinge_losses_by_hand() -> None:
    real, fake = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-2.0, 0.0, 1.0])
    # real: 0, 0.5, 2; fake: 0, 1, 2
    assert hinge_discriminator_loss(real, fake).item() == pytest.approx(0.5 * (2.5 / 3 + 1.0))
    assert hinge_generator_loss(fake).item() == pytest.approx(1 / 3)
    assert hinge_generator_loss(torch.tensor([4.0])).item() == -4.0  # a high score is good


def test_a_discriminator_that_is_sure_learns_no_more() -> None:
    real = torch.tensor([1.5], requires_grad=True)
    fake = torch.tensor([-1.5], requires_grad=True)
    hinge_discriminator_loss(real, fake).backward()
    assert real.grad == 0
    assert fake.grad == 0


def test_pixel_losses_are_means() -> None:
    images = torch.zeros(2, 3, 4, 4)
    assert l1_loss(images + 0.5, images).item() == pytest.approx(0.5)
    assert l2_loss(images + 0.5, images).item() == pytest.approx(0.25)


def test_the_adaptive_weight_is_the_papers_quotient() -> None:
    reconstruction = torch.tensor([[3.0, 4.0]], requires_grad=True)
    adversarial = torch.tensor([[0.0, 0.1]], requires_grad=True)
    weight = adaptive_weight(reconstruction, adversarial)
    assert weight.item() == pytest.approx(5.0 / (0.1 + 1e-4))
    assert not weight.requires_grad


def test_the_adaptive_weight_is_bounded() -> None:
    assert adaptive_weight(torch.ones(4) * 1e3, torch.zeros(4)).item() == 1e4
    assert adaptive_weight(torch.zeros(4), torch.ones(4)).item() == 0.0
