import pytest
import torch

from taming.sequence import to_indices, to_tokens


def test_rows_come_one_after_the_other() -> None:
    indices = torch.tensor([[[0, 1, 2], [3, 4, 5]]])
    assert to_tokens(indices).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_round_trip_of_a_grid_that_is_not_square() -> None:
    indices = torch.randint(9, (2, 3, 5))
    assert torch.equal(to_indices(to_tokens(indices), (3, 5)), indices)


def test_tokens_that_do_not_fill_the_grid() -> None:
    with pytest.raises(ValueError, match="7 tokens do not fill a grid of 2 × 3 = 6"):
        to_indices(torch.zeros(1, 7), (2, 3))
