"""Token orders."""

from typing import Any, get_args

import pytest
import torch

from taming.transformer.orders import FixedOrder, known_first, order_cells, to_indices, to_tokens

SIZES = [(1, 1), (1, 5), (4, 4), (3, 5), (8, 6), (16, 16)]
# computed by the code of taming-transformers, for 4×4 codes
COMPVIS = {
    "spiral_out": [9, 5, 6, 10, 14, 13, 12, 8, 4, 0, 1, 2, 3, 7, 11, 15],
    "spiral_in": [15, 11, 7, 3, 2, 1, 0, 4, 8, 12, 13, 14, 10, 6, 5, 9],
    "z_curve": [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15],
    "subsample": [0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15],
    "alternate_scan": [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12],
    "fixed_random": [3, 13, 7, 2, 6, 10, 4, 1, 14, 0, 15, 9, 8, 12, 11, 5],
}


@pytest.mark.parametrize("order", COMPVIS)
def test_orders_are_those_of_taming_transformers(order: Any) -> None:
    assert order_cells(order, (4, 4)).tolist() == COMPVIS[order]


@pytest.mark.parametrize("order", get_args(FixedOrder))
@pytest.mark.parametrize("size", SIZES)
def test_each_cell_comes_once_and_back(order: Any, size: tuple[int, int]) -> None:
    cells = order_cells(order, size)
    num_cells = size[0] * size[1]
    assert cells.dtype == torch.int64 and sorted(cells.tolist()) == list(range(num_cells))
    indices = torch.randint(9, (2, *size))
    tokens = to_tokens(indices, cells)
    assert torch.equal(tokens, indices.flatten(1)[:, cells])
    assert torch.equal(to_indices(tokens, size, cells), indices)


def test_spirals_go_around_any_grid() -> None:
    inwards = order_cells("spiral_in", (3, 5)).tolist()
    assert inwards == [14, 9, 4, 3, 2, 1, 0, 5, 10, 11, 12, 13, 8, 7, 6]
    assert order_cells("spiral_out", (3, 5)).tolist() == inwards[::-1]


def test_halton_covers_every_quarter_at_any_time() -> None:
    cells = order_cells("halton", (16, 16))
    quarters = (cells // 16 // 8) * 2 + cells % 16 // 8
    for count in range(16, 257):
        shares = torch.bincount(quarters[:count], minlength=4) / count
        assert (shares - 0.25).abs().max() < 0.1


def test_each_image_may_have_its_own_order() -> None:
    indices = torch.arange(12).view(2, 2, 3)
    cells = torch.stack([torch.randperm(6), torch.randperm(6)])
    tokens = to_tokens(indices, cells)
    assert torch.equal(tokens - torch.tensor([[0], [6]]), cells)
    assert torch.equal(to_indices(tokens, (2, 3), cells), indices)


def test_known_cells_come_first_in_their_order() -> None:
    is_known = torch.tensor([[True, False, True, False], [False, False, False, True]])
    order = torch.tensor([3, 2, 1, 0])
    assert known_first(order, is_known).tolist() == [[2, 0, 3, 1], [3, 2, 1, 0]]
