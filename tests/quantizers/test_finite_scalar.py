import itertools
import math

import pytest
import torch
from vector_quantize_pytorch import FSQ

from taming.quantizers import FiniteScalarQuantizer


@pytest.mark.parametrize("levels", [[8, 5, 5, 5], [4, 3], [7, 6, 5], [9]])
def test_codes_indices_and_gradients_equal_an_independent_implementation(levels: list[int]) -> None:
    quantizer, reference = FiniteScalarQuantizer(levels=levels), FSQ(levels)
    z = 2 * torch.randn(4, len(levels), 8, 8, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    output = quantizer(z)
    codes, indices = reference(z)
    assert torch.equal(output.indices, indices.long())
    torch.testing.assert_close(output.quantized, codes)
    upstream = torch.randn_like(codes)
    (gradient,) = torch.autograd.grad(output.quantized, z, upstream)
    (expected,) = torch.autograd.grad(codes, z, upstream)
    torch.testing.assert_close(gradient, expected)
    every_index = torch.arange(math.prod(levels)).view(1, 1, -1)
    torch.testing.assert_close(
        quantizer.lookup(every_index), reference.indices_to_codes(every_index)
    )


def test_the_codes_are_the_grid_of_all_levels() -> None:
    quantizer = FiniteScalarQuantizer(levels=[4, 3, 5])
    assert (quantizer.codebook_size, quantizer.codebook_dim) == (60, 3)
    codes = quantizer.codes_of(torch.arange(60))
    grid = itertools.product(
        [-1.0, -0.5, 0.0, 0.5, 1.0], [-1.0, 0.0, 1.0], [-1.0, -0.5, 0.0, 0.5]
    )  # the first channel counts fastest
    assert codes.tolist() == [list(reversed(point)) for point in grid]


@pytest.mark.parametrize("levels", [3, 4, 5, 8, 16])
def test_every_level_is_reached_and_zero_stays_zero(levels: int) -> None:
    quantizer = FiniteScalarQuantizer(levels=[levels])
    output = quantizer(torch.linspace(-9, 9, 2001).view(1, 1, 1, -1))
    indices = output.indices.flatten()
    assert indices.unique().tolist() == list(range(levels))
    assert (indices.diff() >= 0).all()
    assert quantizer(torch.zeros(1, 1, 1, 1)).quantized.item() == 0


def test_it_has_no_weights_and_no_losses() -> None:
    quantizer = FiniteScalarQuantizer(levels=[8, 5])
    output = quantizer(torch.randn(1, 2, 3, 3))
    assert list(quantizer.state_dict()) == [] and output.losses == {} and output.loss.item() == 0
