import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from taming.losses import (
    ADVERSARIAL_LOSSES,
    adaptive_weight,
    hinge_discriminator_loss,
    hinge_generator_loss,
    l1_loss,
    l2_loss,
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


@pytest.mark.parametrize(
    ("loss", "name"),
    [(hinge_discriminator_loss, "hinge_d_loss"), (vanilla_discriminator_loss, "vanilla_d_loss")],
)
@pytest.mark.parametrize("model", ["vqgan", "vqgan_gumbel"])
def test_losses_are_those_of_the_papers_code(
    shared: Path, model: str, loss: Callable[..., torch.Tensor], name: str
) -> None:
    expected = load_file(shared / "reference" / "compvis" / model / "expected.safetensors")
    found = loss(expected["scores_real_eval"], expected["scores_fake_eval"])
    assert found.item() == pytest.approx(expected[name].item(), abs=1e-6)


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


@pytest.mark.parametrize("name", ["hinge", "vanilla", "non_saturating"])
def test_the_generator_wants_higher_scores_and_the_discriminator_lower(name: str) -> None:
    real, fake = torch.zeros(2, 3).requires_grad_(), torch.zeros(2, 3).requires_grad_()
    discriminator, generator = ADVERSARIAL_LOSSES[name]
    to_real, to_fake = torch.autograd.grad(discriminator(real, fake), (real, fake))
    (to_generator,) = torch.autograd.grad(generator(fake), fake)
    assert (to_real < 0).all()
    assert (to_fake > 0).all()
    assert (to_generator < 0).all()


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
