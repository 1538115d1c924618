import pytest
import torch
from torch import Tensor

from taming.positions import RotaryPositions2D, grid_coordinates
from taming.runtime.errors import UserError

NOWHERE = torch.full((1, 2), torch.nan)


def llamagen(x: Tensor, height: int, width: int) -> Tensor:
    """LlamaGen's rotation of `(b heads h·w d)`, in complex numbers and pair by pair."""
    half = x.shape[-1] // 2
    turned = []
    for row in range(height):
        for column in range(width):
            frequencies = [10000.0 ** (-two_i / half) for two_i in range(0, half, 2)]
            angles = [row * f for f in frequencies] + [column * f for f in frequencies]
            token = torch.view_as_complex(x[:, :, len(turned)].double().unflatten(-1, (-1, 2)))
            token = token * torch.exp(1j * torch.tensor(angles, dtype=torch.float64))
            turned.append(torch.view_as_real(token).flatten(-2))
    return torch.stack(turned, dim=2).float()


@pytest.mark.parametrize("head_dim", [4, 12])
def test_equals_the_formula(head_dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 15, head_dim)
    actual = RotaryPositions2D(head_dim, grid_coordinates((3, 5))).rotation(torch.arange(15))(x)
    torch.testing.assert_close(actual, llamagen(x, 3, 5), atol=1e-6, rtol=1e-6)


def test_a_score_depends_on_rows_and_columns_between_query_and_key_alone() -> None:
    torch.manual_seed(0)
    height, width = 4, 5
    coordinates = grid_coordinates((height, width))
    positions = torch.arange(height * width)
    turn = RotaryPositions2D(8, coordinates).rotation(positions)
    query, key = torch.randn(2, 8, dtype=torch.float64)
    queries = turn(query.expand(1, 1, len(positions), 8))[0, 0]
    keys = turn(key.expand(1, 1, len(positions), 8))[0, 0]
    scores = queries @ keys.T
    seen: dict[tuple[float, ...], float] = {}
    for i in positions:
        for j in positions:
            between = tuple((coordinates[i] - coordinates[j]).tolist())
            score = scores[i, j].item()
            assert seen.setdefault(between, score) == pytest.approx(score, abs=1e-5)
    assert seen[0.0, 0.0] == pytest.approx((query @ key).item(), abs=1e-5)
    distinct = {round(score, 3) for score in seen.values()}
    assert len(seen) == (2 * height - 1) * (2 * width - 1) and len(distinct) > len(seen) // 2


@pytest.mark.parametrize("zero", [False, True])
def test_a_token_nowhere_is_not_turned_or_is_zero(zero: bool) -> None:
    coordinates = torch.cat([NOWHERE, grid_coordinates((2, 2))])
    rotary = RotaryPositions2D(4, coordinates, zero_nowhere=zero)
    x = torch.randn(2, 1, 5, 4)
    turned = rotary.rotation(torch.arange(5))(x)
    assert torch.equal(turned[:, :, 0], torch.zeros(2, 1, 4) if zero else x[:, :, 0])
    alone = RotaryPositions2D(4, grid_coordinates((2, 2))).rotation(torch.arange(4))(x[:, :, 1:])
    assert torch.equal(turned[:, :, 1:], alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_costs_little_more_than_a_rounding(dtype: torch.dtype) -> None:
    rotary = RotaryPositions2D(64, grid_coordinates((16, 16)))
    x, positions = torch.randn(2, 4, 256, 64).to(dtype), torch.arange(256)
    exact = rotary.rotation(positions)(x.double())
    turned = rotary.to(dtype).rotation(positions)(x)  # with the table as it was
    assert turned.dtype == dtype
    error, rounding = ((y.double() - exact).square().mean() for y in (turned, exact.to(dtype)))
    assert (error / rounding).sqrt() < 1.6
    # no direction is favoured: lengths stay, position by position
    lengths = (turned.double().norm(dim=-1) / x.double().norm(dim=-1)).mean(dim=(0, 1))
    assert (lengths - 1).abs().max() < torch.finfo(dtype).eps / 4


def test_a_width_that_has_no_four_quarters() -> None:
    with pytest.raises(UserError, match="multiple of 4, not 6"):
        RotaryPositions2D(6, grid_coordinates((2, 2)))
