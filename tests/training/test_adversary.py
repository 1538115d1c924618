import pytest
import torch
import torch.nn.functional as F
from tiny_models import changed, weights
from tiny_training import tiny_adversary

from taming.discriminators import ActNorm, DifferentiableAugmentation, PatchDiscriminator

NORMS = ["batch", "group", "actnorm"]
ALL = ["color", "translation", "cutout"]


class MeanDiscriminator(PatchDiscriminator):
    """The score of an image is its mean."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((1, 2, 3), keepdim=True)


def images(seed: int = 0) -> torch.Tensor:
    return torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def uniform(*scores: float) -> torch.Tensor:
    """Images of one value each."""
    return torch.tensor(scores).view(-1, 1, 1, 1).expand(-1, 3, 16, 16)


def test_schedule_of_discriminator_and_generator() -> None:
    schedule = tiny_adversary(start=10, warmup=5, ramp=4)
    assert [step for step in range(20) if schedule.trains_at(step)] == list(range(10, 20))
    factors = [schedule.generator_factor(step) for step in range(12, 21)]
    assert factors == pytest.approx([0, 0, 0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert tiny_adversary(start=0, warmup=0, ramp=0).generator_factor(0) == 0.8


@pytest.mark.parametrize(("start", "step"), [(0.25, 25), (1.0, 100), (1, 1), (0, 0)])
def test_start_as_a_share_of_the_training(start: float, step: int) -> None:
    schedule = tiny_adversary(start=start)
    schedule.settle_start(100)
    assert schedule.start == step


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("has_learned", [False, True])
def test_the_generators_pass_changes_no_state(norm: str, has_learned: bool) -> None:
    module = tiny_adversary(norm, lecam_weight=0.1, augmentation=ALL)
    if has_learned:
        module.discriminator_loss(images(0), images(1))
    before = weights(module)
    reconstructions = images(2).requires_grad_()
    (gradient,) = torch.autograd.grad(module.generator_loss(reconstructions), reconstructions)
    assert not changed(module, before)
    assert all(p.grad is None for p in module.parameters())
    assert (gradient.abs().sum((1, 2, 3)) > 0).all()
    module.discriminator_loss(images(0), images(1))
    assert changed(module, before)  # and the discriminator's pass does: LeCAM


@pytest.mark.parametrize("loss", ["hinge", "vanilla", "non_saturating"])
def test_each_loss_by_its_formula(loss: str) -> None:
    module = tiny_adversary(network=MeanDiscriminator, loss=loss)
    actual = module.discriminator_loss(uniform(2.0, 0.5), uniform(0.0, -3.0))
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([0.0, -3.0])
    logistic = 0.5 * (F.softplus(-real) + F.softplus(fake)).mean().item()
    expected = 0.5 * (0.5 / 2 + 1.0 / 2) if loss == "hinge" else logistic
    assert actual["discriminator_loss"].item() == pytest.approx(expected)
    generator = F.softplus(-fake).mean().item() if loss == "non_saturating" else 1.5
    assert module.generator_loss(uniform(0.0, -3.0)).item() == pytest.approx(generator)


def test_scores_and_accuracy_by_hand() -> None:
    module = tiny_adversary(network=MeanDiscriminator)
    actual = module.discriminator_loss(uniform(2.0, 0.5, -1.0, 0.5), uniform(0.0, -3.0, 1.0, 2.0))
    watched = {name: value.item() for name, value in actual.items() if "loss" not in name}
    accuracy = (3 / 4 + 1 / 4) / 2  # 0 is no right answer
    expected = {"scores_real": 0.5, "scores_fake": 0.0, "discriminator_accuracy": accuracy}
    assert watched == pytest.approx(expected, abs=1e-6)


def test_lecam_is_added_with_its_weight() -> None:
    without = tiny_adversary(network=MeanDiscriminator)
    module = tiny_adversary(network=MeanDiscriminator, lecam_weight=0.1, lecam_decay=0.5)
    batches = [(uniform(2.0, 0.5), uniform(0.0, -3.0)), (uniform(1.0, 2.0), uniform(-1.0, 0.0))]
    for batch in batches:
        plain, actual = without.discriminator_loss(*batch), module.discriminator_loss(*batch)
    mean_real = (0.5 * 1.25 + 1.5) / 1.5  # the closed form of two batches
    mean_fake = (0.5 * -1.5 - 0.5) / 1.5
    expected = ((1 - mean_fake) ** 2 + (2 - mean_fake) ** 2) / 2
    expected += ((-1 - mean_real) ** 2 + (0 - mean_real) ** 2) / 2
    assert actual["lecam_loss"].item() == pytest.approx(expected)
    added = actual["discriminator_loss"] - plain["discriminator_loss"]
    assert added.item() == pytest.approx(0.1 * expected)
    assert without.lecam.num_batches == 0
    resumed = tiny_adversary(lecam_weight=0.1)  # of a run that had none
    resumed.load_state_dict(tiny_adversary().state_dict())
    assert resumed.discriminator_loss(images(0), images(1))["lecam_loss"] > 0


def test_batch_norm_sees_real_and_fake_images_separately() -> None:
    module = tiny_adversary("batch")
    actual = module.discriminator_loss(images(0), images(1))
    assert module.discriminator.layers[3].num_batches_tracked == 2
    expected = module.discriminator(images(0)).mean().item()
    assert actual["scores_real"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("norm", ["group", "actnorm"])
def test_one_pass_over_both_equals_two_passes(norm: str) -> None:
    module = tiny_adversary(norm)
    module.discriminator_loss(images(4), images(5))  # initialises
    real, fake = images(0), images(1) * 0.5
    actual = module.discriminator_loss(real, fake)
    for name, batch in (("scores_real", real), ("scores_fake", fake)):
        expected = module.discriminator(batch).mean().item()
        assert actual[name].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_actnorm_is_initialised_by_real_and_fake_images() -> None:
    module = tiny_adversary("actnorm")
    module.discriminator_loss(images(0), images(1) * 0.1)
    assert isinstance(module.discriminator.layers[3], ActNorm)
    output = module.discriminator.layers[:4](torch.cat([images(0), images(1) * 0.1]))
    assert output.mean((0, 2, 3)).tolist() == pytest.approx([0.0] * 8, abs=1e-3)
    initialised = weights(module)
    module.discriminator_loss(images(2), images(3))
    assert not changed(module, initialised)


def test_real_and_fake_images_are_augmented() -> None:
    module = tiny_adversary("batch", augmentation=["cutout"])
    batches: list[torch.Tensor] = []
    module.discriminator.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0]))
    ones = torch.ones(4, 3, 16, 16)
    module.discriminator_loss(ones, ones)
    module.generator_loss(ones)
    assert len(batches) == 3
    for augmented in batches:
        share = (augmented == 0).float().mean((1, 2, 3))
        assert ((share >= 1 / 16) & (share <= 1 / 4)).all()
    assert not torch.equal(batches[0], batches[1])  # each has random numbers of its own


def test_the_generators_gradient_flows_through_the_augmentation() -> None:
    module = tiny_adversary(network=MeanDiscriminator, augmentation=["cutout"])
    reconstructions = images(0).requires_grad_()
    torch.manual_seed(3)
    module.generator_loss(reconstructions).backward()
    torch.manual_seed(3)
    mask = DifferentiableAugmentation(["cutout"])(torch.ones(4, 3, 16, 16))
    torch.testing.assert_close(reconstructions.grad, -mask / mask.numel())
