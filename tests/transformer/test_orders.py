import torch

from taming.transformer.orders import to_indices, to_tokens


def test_rows_come_one_after_the_other() -> None:
    indices = torch.tensor([[[0, 1, 2], [3, 4, 5]]])
    assert to_tokens(indices).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_round_trip_of_a_grid_that_is_not_square() -> None:
    indices = torch.randint(9, (2, 3, 5))
    assert torch.equal(to_indices(to_tokens(indices), (3, 5)), indices)
