import math

import pytest
import torch

from taming.losses import (
    ADVERSARIAL_LOSSES,
    RECONSTRUCTION_LOSSES,
    LeCAM,
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


def test_each_name_has_a_discriminator_and_a_generator_loss() -> None:
    real, fake = torch.tensor([0.5]), torch.tensor([0.25])
    hinge, vanilla = 0.5 * (0.5 + 1.25), 0.5 * math.log((1 + math.exp(-0.5)) * (1 + math.exp(0.25)))
    expected = {
        "hinge": (hinge, -0.25),
        "vanilla": (vanilla, -0.25),
        "non_saturating": (vanilla, math.log(1 + math.exp(-0.25))),
    }
    assert ADVERSARIAL_LOSSES.keys() == expected.keys()
    for name, (discriminator, generator) in ADVERSARIAL_LOSSES.items():
        losses = (discriminator(real, fake).item(), generator(fake).item())
        assert losses == pytest.approx(expected[name])


def test_pixel_losses_are_means() -> None:
    images = torch.zeros(2, 3, 4, 4)
    for name, expected in (("l1", 0.5), ("l2", 0.25)):
        loss = RECONSTRUCTION_LOSSES[name](images + 0.5, images)
        assert loss.item() == pytest.approx(expected)


def test_cross_entropy_of_each_pixels_class() -> None:
    label_maps = torch.tensor([[0, 2]]).eq(torch.arange(3).view(1, 3, 1, 1)).float()  # (1 3 1 2)
    logits = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 3.0]]).T.view(1, 3, 1, 2).requires_grad_()
    first, second = math.log(math.e + 2) - 1, math.log(2 + math.e**3) - 3
    loss = cross_entropy_loss(logits, label_maps)
    assert loss.item() == pytest.approx((first + second) / 2, rel=1e-6)
    loss.backward()
    # the gradient is (softmax − one-hot) / number of pixels
    expected = (logits.detach().softmax(1) - label_maps) / 2
    torch.testing.assert_close(logits.grad, expected)
    # uniform logits cost ln(number of classes)
    assert cross_entropy_loss(torch.zeros(1, 3, 1, 2), label_maps).item() == pytest.approx(
        math.log(3)
    )


def test_the_adaptive_weight_follows_the_paper() -> None:
    reconstruction = torch.tensor([[3.0, 4.0]], requires_grad=True)
    adversarial = torch.tensor([[0.0, 0.1]], requires_grad=True)
    weight = adaptive_weight(reconstruction, adversarial)
    assert weight.item() == pytest.approx(5.0 / (0.1 + 1e-4))
    assert not weight.requires_grad


def test_the_adaptive_weight_is_bounded() -> None:
    assert adaptive_weight(torch.ones(4) * 1e3, torch.zeros(4)).item() == 1e4
    assert adaptive_weight(torch.zeros(4), torch.ones(4)).item() == 0.0


def scores(seed: int, mean: float) -> torch.Tensor:
    return torch.randn(4, 1, 2, 3, generator=torch.Generator().manual_seed(seed)) + mean


def test_lecam_is_the_distance_from_the_other_sides_mean() -> None:
    lecam = LeCAM().eval()
    lecam.mean_real.fill_(1.0)
    lecam.mean_fake.fill_(-0.5)
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([-1.0, 0.0])
    expected = (2.5**2 + 1.0**2) / 2 + (2.0**2 + 1.0**2) / 2
    assert lecam(real, fake).item() == pytest.approx(expected)
    assert lecam.mean_real == 1.0 and lecam.num_batches == 0  # evaluation changes nothing


@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999])
def test_after_k_batches_lecams_means_have_their_closed_form(decay: float) -> None:
    lecam = LeCAM(decay).train()
    k = 5
    batches = [(scores(i, 0.3 * i), scores(i + 50, -0.2 * i)) for i in range(k)]
    for real, fake in batches:
        lecam(real, fake)
    weights = [decay ** (k - 1 - i) for i in range(k)]
    for side, mean in enumerate((lecam.mean_real, lecam.mean_fake)):
        sums = [w * b[side].mean().item() for w, b in zip(weights, batches, strict=True)]
        assert mean.item() == pytest.approx(sum(sums) / sum(weights), rel=1e-4)
    assert lecam.num_batches == k


def test_lecam_compares_the_first_batch_with_its_own_means() -> None:
    real, fake = scores(0, 2.0), scores(1, -1.0)
    expected = (real - fake.mean()).square().mean() + (fake - real.mean()).square().mean()
    assert LeCAM(0.99).train()(real, fake).item() == pytest.approx(expected.item())


def test_lecams_gradient_is_twice_the_distance() -> None:
    lecam = LeCAM(0.9).train()
    for i in range(3):
        lecam(scores(i, 1.0), scores(i, -1.0))
    real, fake = scores(7, 1.0).requires_grad_(), scores(8, -1.0).requires_grad_()
    lecam(real, fake).backward()
    # the means are constants, although they include this batch
    torch.testing.assert_close(real.grad, 2 * (real - lecam.mean_fake).detach() / 24)
    torch.testing.assert_close(fake.grad, 2 * (fake - lecam.mean_real).detach() / 24)
    assert not lecam.mean_real.requires_grad
