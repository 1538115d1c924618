import math

import pytest
import torch

from taming.positions import (
    SinusoidalPositions,
    SinusoidalPositions2D,
    grid_coordinates,
    sinusoidal_encoding,
)


def formula(position: float, column: int, dim: int) -> float:
    angle = position / 10000 ** (2 * (column // 2) / dim)
    return math.cos(angle) if column % 2 else math.sin(angle)


def test_worked_example() -> None:
    encoding = sinusoidal_encoding(2, 4)
    assert encoding[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    expected = torch.tensor([0.841471, 0.540302, 0.010000, 0.999950])
    torch.testing.assert_close(encoding[1], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dim", [1, 6, 7])
def test_equals_the_formula_also_far_out_and_for_an_odd_width(dim: int) -> None:
    encoding = sinusoidal_encoding(5000, dim)
    assert encoding.shape == (5000, dim) and encoding.dtype == torch.float32
    for position in (3, 4999):
        for column in range(dim):
            expected = formula(position, column, dim)
            assert encoding[position, column].item() == pytest.approx(expected, abs=1e-6)


def test_positions_may_be_fractions_and_negative() -> None:
    positions = torch.tensor([2.5, -0.25, 7.0])
    encoding = sinusoidal_encoding(positions, 5)
    expected = [[formula(p, column, 5) for column in range(5)] for p in positions.tolist()]
    torch.testing.assert_close(encoding, torch.tensor(expected), atol=1e-6, rtol=0)
    assert torch.equal(encoding[2], sinusoidal_encoding(8, 5)[7])


@pytest.mark.parametrize("shift", [1, 5, 33])
def test_a_shift_is_a_rotation_of_each_pair(shift: int) -> None:
    dim = 8
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


def test_there_is_no_last_place() -> None:
    module = SinusoidalPositions(6, length=4)
    added = module(torch.zeros(1, 9, 6), torch.arange(9))[0]
    torch.testing.assert_close(added, sinusoidal_encoding(9, 6))
    far = module(torch.zeros(1, 1, 6), torch.tensor([2000]))[0, 0]
    assert far.tolist() == pytest.approx([formula(2000, i, 6) for i in range(6)], abs=1e-6)
    scaled = SinusoidalPositions(6, length=4, scale=0.1)(torch.zeros(1, 9, 6), torch.arange(9))[0]
    torch.testing.assert_close(scaled, 0.1 * added)


@pytest.mark.parametrize(("dim", "row_dim"), [(8, 4), (7, 4), (6, 3)])
def test_one_half_of_the_channels_is_the_row_the_other_the_column(dim: int, row_dim: int) -> None:
    grid = SinusoidalPositions2D(dim, grid_coordinates((2, 3)))(
        torch.zeros(1, 6, dim), torch.arange(6)
    ).unflatten(1, (2, 3))[0]  # (row column dim)
    for row in range(2):
        for column in range(3):
            expected = [formula(row, i, row_dim) for i in range(row_dim)]
            expected += [formula(column, i, dim - row_dim) for i in range(dim - row_dim)]
            assert grid[row, column].tolist() == pytest.approx(expected, abs=1e-6)


def test_nothing_is_added_to_a_token_without_place() -> None:
    coordinates = torch.cat([torch.full((1, 2), torch.nan), grid_coordinates((2, 2))])
    module = SinusoidalPositions2D(8, coordinates, scale=0.5)
    x = torch.randn(3, 5, 8)
    output = module(x, torch.arange(5))
    assert torch.equal(output[:, 0], x[:, 0])
    plain = SinusoidalPositions2D(8, grid_coordinates((2, 2)))
    added = plain(torch.zeros(3, 4, 8), torch.arange(4))
    torch.testing.assert_close(output[:, 1:], x[:, 1:] + 0.5 * added)
