import math

import pytest
import torch

from taming.positions import LearnedPositions, SinusoidalPositions, sinusoidal_encoding


def test_worked_example() -> None:
    encoding = sinusoidal_encoding(2, 4)
    assert encoding[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    expected = torch.tensor([0.841471, 0.540302, 0.010000, 0.999950])
    torch.testing.assert_close(encoding[1], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dim", [6, 7])
def test_equals_the_formula_also_far_out_and_for_an_odd_width(dim: int) -> None:
    encoding = sinusoidal_encoding(5000, dim)
    assert encoding.shape == (5000, dim) and encoding.dtype == torch.float32
    for position in (3, 4999):
        for column in range(dim):
            angle = position / 10000 ** (2 * (column // 2) / dim)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert encoding[position, column].item() == pytest.approx(expected, abs=1e-6)


def test_a_shift_is_a_rotation_of_each_pair() -> None:
    dim, shift = 8, 5
    pairs = sinusoidal_encoding(40, dim).unflatten(1, (-1, 2))  # (length pairs 2)
    for i in range(dim // 2):
        angle = torch.tensor(shift / 10000 ** (2 * i / dim))
        rotation = torch.stack(
            [
                torch.stack([angle.cos(), angle.sin()]),
                torch.stack([-angle.sin(), angle.cos()]),
            ]
        )
        torch.testing.assert_close(
            pairs[:-shift, i] @ rotation.T, pairs[shift:, i], atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(
    "module", [SinusoidalPositions(6, length=4), LearnedPositions(12, 6)], ids=["sin", "learned"]
)
def test_offset_continues_the_sequence(module: torch.nn.Module) -> None:
    x = torch.randn(2, 12, 6)
    whole = module(x)
    parts = torch.cat([module(x[:, :5]), module(x[:, 5:6], 5), module(x[:, 6:], 6)], dim=1)
    assert torch.equal(parts, whole)
    assert torch.unique((whole - x)[0].detach().round(decimals=4), dim=0).shape == (12, 6)


def test_sinusoidal_positions_have_no_state_and_no_end() -> None:
    module = SinusoidalPositions(6, length=4)
    assert module.state_dict() == {} and list(module.parameters()) == []
    added = module(torch.zeros(1, 9, 6))[0]
    torch.testing.assert_close(added, sinusoidal_encoding(9, 6))
    scaled = SinusoidalPositions(6, length=4, scale=0.1)(torch.zeros(1, 9, 6))[0]
    torch.testing.assert_close(scaled, 0.1 * added)
    assert module(torch.zeros(1, 3, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_learned_positions_end() -> None:
    module = LearnedPositions(4, 6)
    assert module(torch.zeros(1, 1, 6), offset=3).shape == (1, 1, 6)
    with pytest.raises(ValueError, match="4 learned positions, and 5 are asked for"):
        module(torch.zeros(1, 1, 6), offset=4)
