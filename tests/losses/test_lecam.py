import pytest
import torch

from taming.losses import LeCAM


def scores(seed: int, mean: float) -> torch.Tensor:
    return torch.randn(4, 1, 2, 3, generator=torch.Generator().manual_seed(seed)) + mean


def test_it_is_the_distance_from_the_other_sides_mean() -> None:
    lecam = LeCAM().eval()
    lecam.mean_real.fill_(1.0)
    lecam.mean_fake.fill_(-0.5)
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([-1.0, 0.0])
    expected = (2.5**2 + 1.0**2) / 2 + (2.0**2 + 1.0**2) / 2
    assert lecam(real, fake).item() == pytest.approx(expected)
    assert lecam.mean_real == 1.0  # evaluation changes nothing
    assert lecam.num_batches == 0


@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999])
def test_after_k_batches_the_means_are_the_closed_form(decay: float) -> None:
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


def test_the_first_batch_is_compared_with_its_own_means() -> None:
    real, fake = scores(0, 2.0), scores(1, -1.0)
    expected = (real - fake.mean()).square().mean() + (fake - real.mean()).square().mean()
    assert LeCAM(0.99).train()(real, fake).item() == pytest.approx(expected.item())


def test_the_gradient_is_twice_the_distance() -> None:
    lecam = LeCAM(0.9).train()
    for i in range(3):
        lecam(scores(i, 1.0), scores(i, -1.0))
    real, fake = scores(7, 1.0).requires_grad_(), scores(8, -1.0).requires_grad_()
    lecam(real, fake).backward()
    # the means are constants, though this batch is in them
    torch.testing.assert_close(real.grad, 2 * (real - lecam.mean_fake).detach() / 24)
    torch.testing.assert_close(fake.grad, 2 * (fake - lecam.mean_real).detach() / 24)
    assert not lecam.mean_real.requires_grad
