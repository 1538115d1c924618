"""Attention computed by hand, in float64; the numbers are exact to their last digit."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from largest_error import check
from torch import Tensor

from taming.attention import MultiHeadAttention, attention, attention_weights, fused_attention


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def tenths(num_rows: int, num_columns: int) -> Tensor:
    """x_ij = (i + j + 1) / 10 with i and j counted from 0."""
    i, j = torch.arange(num_rows)[:, None], torch.arange(num_columns)
    return (i + j + 1).double() / 10


class Example(NamedTuple):
    name: str
    x: Tensor
    query_map: Tensor  # Q = X W_Q
    key_map: Tensor
    value_map: Tensor
    rows: list[int]  # rows of the expected output
    output: Tensor
    tolerance: float  # half a unit of the last digit, and a little for the last rounding


UNITS = Example(
    "units",
    matrix([1, 0], [0, 1], [1, 1]),
    *[torch.eye(2, dtype=torch.float64)] * 3,
    rows=[0, 1, 2],
    output=matrix([0.802224, 0.598888], [0.598888, 0.802224], [0.751745, 0.751745]),
    tolerance=5.1e-7,
)
UNITS_WEIGHTS = matrix(
    [0.401112, 0.197776, 0.401112], [0.197776, 0.401112, 0.401112], [0.248255, 0.248255, 0.503490]
)
INTEGERS = Example(
    "integers",
    matrix([1, 1, 1, 0], [1, 2, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0]),
    query_map=matrix([1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0]),
    key_map=matrix([1, 0, 0], [1, 1, 1], [1, 0, 1], [0, 1, 0]),
    value_map=matrix([1, 2, 0], [1, 3, 1], [1, 0, 2], [1, 1, 0]),
    rows=[0, 1, 2, 3],
    output=matrix(
        [3.9492, 7.8588, 3.9577],
        [3.9924, 7.9784, 3.9934],
        [3.8407, 7.5669, 3.8595],
        [3.7902, 7.4482, 3.8228],
    ),
    tolerance=5.1e-5,
)
TENTHS = Example(
    "tenths",
    tenths(6, 4),
    query_map=tenths(4, 4),
    key_map=tenths(4, 4) + 0.4,
    value_map=tenths(4, 4) + 0.8,
    rows=[0, 5],
    output=matrix(
        [2.496469, 2.729466, 2.962463, 3.195460], [2.892697, 3.163430, 3.434163, 3.704896]
    ),
    tolerance=5.1e-7,
)
TENTHS_UNSCALED = matrix([2.757124, 3.014945, 3.272766, 3.530587])

EXAMPLES = pytest.mark.parametrize("example", [UNITS, INTEGERS, TENTHS], ids=lambda e: e.name)
PATHS = pytest.mark.parametrize("function", [attention, fused_attention])


@PATHS
@EXAMPLES
def test_output(example: Example, function: Callable) -> None:
    _, x, query_map, key_map, value_map, rows, expected, tolerance = example
    output = function(x @ query_map, x @ key_map, x @ value_map)
    check(example.name, output[rows], expected, tolerance)


@pytest.mark.parametrize("fused", [False, True])
@EXAMPLES
def test_module_with_the_same_maps(example: Example, fused: bool) -> None:
    _, x, query_map, key_map, value_map, rows, expected, tolerance = example
    (embed_dim, key_dim), value_dim = query_map.shape, value_map.shape[1]
    module = MultiHeadAttention(
        embed_dim, 1, key_dim=key_dim, value_dim=value_dim, bias=False, fused=fused
    ).double()
    maps = torch.cat([query_map, key_map, value_map], dim=1)
    output_map = torch.eye(value_dim, embed_dim, dtype=torch.float64)  # W_O appends zeros
    weights = {"query_key_value.weight": maps.T, "output.weight": output_map.T}
    module.load_state_dict(weights)
    output = module(x[None])[0, rows, :value_dim]
    check(f"{example.name}, the module", output, expected, tolerance)


@PATHS
def test_weights_and_cross_attention_from_the_first_two_rows(function: Callable) -> None:
    x, tolerance = UNITS.x, UNITS.tolerance
    check("units, weights", attention_weights(x, x), UNITS_WEIGHTS, tolerance)
    check("units, crossed, weights", attention_weights(x[:2], x), UNITS_WEIGHTS[:2], tolerance)
    check("units, crossed", function(x[:2], x, x), UNITS.output[:2], tolerance)


@PATHS
def test_without_the_scale(function: Callable) -> None:
    """Queries √d_k times as long cancel the division by √d_k."""
    _, x, query_map, key_map, value_map, *_ = TENTHS
    output = function(2 * x @ query_map, x @ key_map, x @ value_map)  # d_k = 4
    check("tenths, unscaled", output[:1], TENTHS_UNSCALED, TENTHS.tolerance)
