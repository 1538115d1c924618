import torch

from taming.positions import grid_coordinates
from taming.transformer.orders import to_tokens


def test_order_is_that_of_the_sequence() -> None:
    height, width = 2, 5
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    expected = torch.stack([to_tokens(rows[None])[0], to_tokens(columns[None])[0]], dim=1)
    coordinates = grid_coordinates((height, width))
    assert coordinates.dtype == torch.float32
    assert torch.equal(coordinates, expected.float())


def test_a_reference_grid_of_the_same_size_changes_nothing() -> None:
    assert torch.equal(grid_coordinates((3, 5), (3, 5)), grid_coordinates((3, 5)))


def test_a_coarser_grid_lies_on_the_middle_of_the_cells_it_covers() -> None:
    coarse = grid_coordinates((2, 2), (4, 6)).view(2, 2, 2)
    fine = grid_coordinates((4, 6)).view(2, 2, 2, 3, 2)  # (row, in the cell, column, in it, 2)
    torch.testing.assert_close(coarse, fine.mean(dim=(1, 3)))


def test_a_finer_grid_has_its_cells_around_those_it_divides() -> None:
    fine = grid_coordinates((4, 1), (2, 1))
    assert fine[:, 0].tolist() == [-0.25, 0.25, 0.75, 1.25]
    assert fine[:, 1].tolist() == [0.0] * 4
