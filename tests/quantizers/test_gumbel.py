import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from taming.quantizers import GumbelQuantizer


def make(**changes: Any) -> GumbelQuantizer:
    torch.manual_seed(0)
    return GumbelQuantizer(**{"codebook_size": 16, "codebook_dim": 4, **changes})


def latents() -> torch.Tensor:
    return torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(1))


def as_rows(grid: torch.Tensor) -> torch.Tensor:
    return grid.permute(0, 2, 3, 1).reshape(-1, grid.shape[1])


def test_draws_follow_the_softmax_of_the_logits() -> None:
    quantizer = make(codebook_size=4, codebook_dim=1).train()
    quantizer.set_step(10**9)  # the temperature does not matter
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    with torch.no_grad():
        quantizer.projection.weight.zero_()
        quantizer.projection.bias.copy_(probabilities.log())
    counts = quantizer(torch.zeros(1, 1, 200, 200)).code_counts
    # 40000 draws: standard errors are at most 0.0025
    torch.testing.assert_close(counts / 40000, probabilities, rtol=0, atol=0.01)


@pytest.mark.parametrize("hard", [True, False])
def test_value_and_gradients_equal_torchs_gumbel_softmax(hard: bool) -> None:
    quantizer = make(hard=hard, temperature_start=0.7).train()
    z = latents().requires_grad_()
    upstream = torch.randn(2, 4, 3, 5)
    weights = [z, quantizer.projection.weight, quantizer.codebook]
    torch.manual_seed(3)
    output = quantizer(z)
    actual = torch.autograd.grad(output.quantized, weights, upstream)
    torch.manual_seed(3)
    draws = F.gumbel_softmax(quantizer.projection(as_rows(z)), tau=0.7, hard=hard)
    expected = draws @ quantizer.codebook
    torch.testing.assert_close(as_rows(output.quantized), expected)
    references = torch.autograd.grad(expected, weights, as_rows(upstream))
    for gradient, reference in zip(actual, references, strict=True):
        assert (gradient - reference).abs().max() < 1e-5 * reference.abs().max()
    assert torch.equal(output.indices.flatten(), draws.argmax(1))


def test_evaluation_takes_the_code_of_the_largest_logit() -> None:
    quantizer = make(codebook_size=256).eval()
    weight, bias = quantizer.projection.weight.double(), quantizer.projection.bias.double()
    expected = (as_rows(latents()).double() @ weight.T + bias).argmax(1)
    assert torch.equal(quantizer(latents()).indices.flatten(), expected)


def test_the_loss_is_the_kl_divergence_from_uniform() -> None:
    quantizer = make(kl_weight=0.5)
    q = quantizer.projection(as_rows(latents())).double().softmax(1)
    expected = 0.5 * (q * (q * 16).log()).sum(1).mean().item()
    for training in (True, False):  # without the noise
        loss = quantizer.train(training)(latents()).losses["kl_loss"]
        assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("cosine", [1.0, 0.9 * (0.5 + 0.5 / math.sqrt(2)) + 0.1, 0.55, 0.1, 0.1]),
        ("linear", [1.0, 0.775, 0.55, 0.1, 0.1]),
        ("constant", [1.0] * 5),
    ],
)
def test_temperature_schedules(schedule: str, expected: list[float]) -> None:
    quantizer = make(temperature_end=0.1, temperature_steps=100, temperature_schedule=schedule)
    assert quantizer.temperature.item() == 1.0
    for step, temperature in zip((0, 25, 50, 100, 1000), expected, strict=True):
        quantizer.set_step(step)
        assert quantizer.temperature.item() == pytest.approx(temperature, rel=1e-6)
