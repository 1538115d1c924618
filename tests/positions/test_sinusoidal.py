import math

import pytest
import torch
from torch import Tensor

from taming.positions import (
    SinusoidalPositions,
    SinusoidalPositions2D,
    grid_coordinates,
    sinusoidal_encoding,
)


def formula(positions: list[float], dim: int) -> Tensor:
    """The encoding `(n dim)`, number by number in float64."""

    def entry(position: float, column: int) -> float:
        angle = position / 10000 ** (2 * (column // 2) / dim)
        return math.cos(angle) if column % 2 else math.sin(angle)

    rows = [[entry(position, column) for column in range(dim)] for position in positions]
    return torch.tensor(rows, dtype=torch.float64)


def assert_equal_to_formula(encoding: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(encoding.double(), expected, atol=1e-7, rtol=1e-6)


def test_worked_example() -> None:
    encoding = sinusoidal_encoding(2, 4)
    assert encoding[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    expected = torch.tensor([0.841471, 0.540302, 0.010000, 0.999950])
    torch.testing.assert_close(encoding[1], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dim", [1, 5, 6, 7])
def test_the_encoding_equals_the_formula(dim: int) -> None:
    encoding = sinusoidal_encoding(5000, dim)
    assert encoding.shape == (5000, dim) and encoding.dtype == torch.float32
    assert_equal_to_formula(encoding[[3, 4999]], formula([3, 4999], dim))
    positions = [2.5, -0.25, 7.0]  # fractions and negative numbers too
    fractions = sinusoidal_encoding(torch.tensor(positions), dim)
    assert_equal_to_formula(fractions, formula(positions, dim))
    assert torch.equal(fractions[2], encoding[7])


@pytest.mark.parametrize("shift", [1, 5, 33])
def test_a_shift_is_a_rotation_of_each_pair(shift: int) -> None:
    dim = 8
    pairs = sinusoidal_encoding(40, dim).unflatten(1, (-1, 2))  # (length pairs 2)
    for i in range(dim // 2):
        angle = shift / 10000 ** (2 * i / dim)
        cos, sin = math.cos(angle), math.sin(angle)
        rotated = pairs[:-shift, i] @ torch.tensor([[cos, sin], [-sin, cos]]).T
        torch.testing.assert_close(rotated, pairs[shift:, i], atol=1e-5, rtol=0)


def test_the_table_grows_on_a_cpu() -> None:
    module = SinusoidalPositions(6, length=4)
    added = module(torch.zeros(1, 9, 6), torch.arange(9))[0]
    torch.testing.assert_close(added, sinusoidal_encoding(9, 6))
    late = module(torch.zeros(1, 1, 6), torch.tensor([2000]))[0]
    assert_equal_to_formula(late, formula([2000], 6))
    scaled = SinusoidalPositions(6, length=4, scale=0.1)(torch.zeros(1, 9, 6), torch.arange(9))[0]
    torch.testing.assert_close(scaled, 0.1 * added)


@pytest.mark.parametrize(("dim", "row_dim"), [(8, 4), (7, 4), (6, 3)])
def test_half_of_the_channels_encode_the_row_half_the_column(dim: int, row_dim: int) -> None:
    module = SinusoidalPositions2D(dim, grid_coordinates((2, 3)).flatten(0, 1))
    added = module(torch.zeros(1, 6, dim), torch.arange(6))[0].unflatten(0, (2, 3))
    rows, columns = added.split([row_dim, dim - row_dim], dim=-1)  # (row column dim)
    for column in range(3):
        assert_equal_to_formula(rows[:, column], formula([0, 1], row_dim))
    for row in range(2):
        assert_equal_to_formula(columns[row], formula([0, 1, 2], dim - row_dim))


def test_a_token_outside_the_grid_stays_unchanged() -> None:
    grid = grid_coordinates((2, 2)).flatten(0, 1)
    coordinates = torch.cat([torch.full((1, 2), torch.nan), grid])
    x = torch.randn(3, 5, 8)
    output = SinusoidalPositions2D(8, coordinates, scale=0.5)(x, torch.arange(5))
    assert torch.equal(output[:, 0], x[:, 0])
    added = SinusoidalPositions2D(8, grid)(torch.zeros(3, 4, 8), torch.arange(4))
    torch.testing.assert_close(output[:, 1:], x[:, 1:] + 0.5 * added)
