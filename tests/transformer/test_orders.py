import torch

from taming.transformer.orders import to_indices, to_tokens


def test_tokens_are_in_raster_order_and_become_the_same_grid_again() -> None:
    indices = torch.tensor([[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]])
    tokens = to_tokens(indices)
    assert tokens.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert torch.equal(to_indices(tokens, (2, 3)), indices)
