import pytest
import torch
from torch import Tensor

from taming.positions import RotaryPositions2D, grid_coordinates
from taming.runtime.errors import UserError


def rotary(head_dim: int, height: int, width: int) -> RotaryPositions2D:
    return RotaryPositions2D(head_dim, grid_coordinates((height, width)).flatten(0, 1))


def llamagen(x: Tensor, height: int, width: int) -> Tensor:
    """LlamaGen's rotation of `(b heads h·w d)`, in complex numbers and pair by pair."""
    half = x.shape[-1] // 2
    rotated = []
    for row in range(height):
        for column in range(width):
            frequencies = [10000.0 ** (-two_i / half) for two_i in range(0, half, 2)]
            angles = [row * f for f in frequencies] + [column * f for f in frequencies]
            token = torch.view_as_complex(x[:, :, len(rotated)].double().unflatten(-1, (-1, 2)))
            token = token * torch.exp(1j * torch.tensor(angles, dtype=torch.float64))
            rotated.append(torch.view_as_real(token).flatten(-2))
    return torch.stack(rotated, dim=2)


@pytest.mark.parametrize("head_dim", [4, 12])
def test_equals_the_formula(head_dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 15, head_dim)
    actual = rotary(head_dim, 3, 5).rotation(torch.arange(15))(x)
    expected = llamagen(x, 3, 5)
    assert (actual - expected).abs().max() < 1e-6 * expected.abs().max()


def test_a_score_depends_only_on_rows_and_columns_between_query_and_key() -> None:
    torch.manual_seed(0)
    height, width = 4, 5
    rotate = rotary(8, height, width).rotation(torch.arange(20))
    query, key = torch.randn(2, 8, dtype=torch.float64)
    queries, keys = (rotate(vector.expand(1, 1, 20, 8))[0, 0] for vector in (query, key))
    scores = queries @ keys.T
    by_offset: dict[tuple[int, int], float] = {}
    for i in range(20):
        for j in range(20):
            offset = i // width - j // width, i % width - j % width
            score = scores[i, j].item()
            assert by_offset.setdefault(offset, score) == pytest.approx(score, abs=1e-5)
    assert by_offset[0, 0] == pytest.approx((query @ key).item(), abs=1e-5)
    distinct = {round(score, 3) for score in by_offset.values()}
    assert len(by_offset) == (2 * height - 1) * (2 * width - 1)
    assert len(distinct) > len(by_offset) // 2


@pytest.mark.parametrize("zero", [False, True])
def test_a_token_outside_the_grid_is_not_rotated_or_is_zero(zero: bool) -> None:
    outside, grid = torch.full((1, 2), torch.nan), grid_coordinates((2, 2)).flatten(0, 1)
    module = RotaryPositions2D(4, torch.cat([outside, grid]), zero_outside=zero)
    x = torch.randn(2, 1, 5, 4)
    rotated = module.rotation(torch.arange(5))(x)
    assert torch.equal(rotated[:, :, 0], torch.zeros(2, 1, 4) if zero else x[:, :, 0])
    assert torch.equal(rotated[:, :, 1:], rotary(4, 2, 2).rotation(torch.arange(4))(x[:, :, 1:]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_costs_about_two_roundings(dtype: torch.dtype) -> None:
    module = rotary(64, 16, 16)
    x, positions = torch.randn(2, 4, 256, 64).to(dtype), torch.arange(256)
    exact = module.rotation(positions)(x.double())
    rotated = module.to(dtype).rotation(positions)(x)  # conversion does not round the table
    assert rotated.dtype == dtype
    error, rounding = ((y.double() - exact).square().mean() for y in (rotated, exact.to(dtype)))
    assert (error / rounding).sqrt() < 1.6
    # the error has no preferred direction: lengths stay at every position
    lengths = (rotated.double().norm(dim=-1) / x.double().norm(dim=-1)).mean(dim=(0, 1))
    assert (lengths - 1).abs().max() < torch.finfo(dtype).eps / 4


def test_a_width_that_is_no_multiple_of_4() -> None:
    with pytest.raises(UserError, match="multiple of 4, not 6"):
        rotary(6, 2, 2)
