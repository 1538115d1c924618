import math

import pytest
import torch

from taming.quantizers import VectorQuantizer
from taming.quantizers.entropy import entropy_penalty


def distances(*assignments: list[float], temperature: float = 1.0) -> torch.Tensor:
    """Distances with these soft assignments, plus a constant for each latent."""
    constants = torch.arange(len(assignments))[:, None]
    return -temperature * torch.tensor(assignments).log() + constants


def penalty(distances: torch.Tensor, temperature: float) -> torch.Tensor:
    return entropy_penalty([distances], temperature, over_ranks=False)


def entropy(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities)


def test_values_by_hand() -> None:
    both = distances([0.75, 0.25], [0.25, 0.75])
    expected = entropy(0.75, 0.25) - math.log(2)
    assert penalty(both, 1.0).item() == pytest.approx(expected, rel=1e-5)
    uneven = distances([0.7, 0.2, 0.1], [0.5, 0.1, 0.4], temperature=0.3)
    expected = (entropy(0.7, 0.2, 0.1) + entropy(0.5, 0.1, 0.4)) / 2 - entropy(0.6, 0.15, 0.25)
    assert penalty(uneven, 0.3).item() == pytest.approx(expected, rel=1e-5)


def test_the_bounds() -> None:
    one_each = 1e4 * (1 - torch.eye(5))
    assert penalty(one_each, 1.0).item() == pytest.approx(-math.log(5), rel=1e-6)
    all_alike = 1e4 * (1 - torch.eye(5)[[2, 2, 2]])
    assert penalty(all_alike, 1.0).item() == pytest.approx(0.0, abs=1e-6)
    assert penalty(torch.zeros(3, 5), 1.0).item() == pytest.approx(0.0, abs=1e-6)


def test_the_gradient_is_finite_where_an_assignment_is_zero() -> None:
    far = (1e6 * (1 - torch.eye(5)[[2, 2, 2]])).requires_grad_()
    (gradient,) = torch.autograd.grad(penalty(far, 0.01), far)
    assert torch.isfinite(gradient).all()


def test_chunks_of_latents_give_the_same_value() -> None:
    whole = torch.randn(11, 5, generator=torch.Generator().manual_seed(0))
    chunked = entropy_penalty(whole.split(4), 0.5, over_ranks=False)
    assert chunked.item() == pytest.approx(penalty(whole, 0.5).item(), rel=1e-5)


def test_the_weight_scales_the_loss_and_zero_omits_it() -> None:
    z = torch.randn(2, 3, 4, 4)
    losses = []
    for weight in (0.0, 0.1, 0.3):
        torch.manual_seed(0)
        quantizer = VectorQuantizer(codebook_size=8, codebook_dim=3, entropy_weight=weight)
        losses.append(quantizer(z).losses)
    assert losses[0].keys() == {"codebook_loss", "commitment_loss"}
    torch.testing.assert_close(3 * losses[1]["entropy_loss"], losses[2]["entropy_loss"])
    assert losses[1]["entropy_loss"] < 0
