"""Half precision becomes float32, and nothing else changes."""

import pytest
import torch

from taming.runtime.dtypes import at_least_float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(dtype: torch.dtype) -> None:
    values = torch.tensor([1.5, -3.0], dtype=dtype)
    assert at_least_float32(values).dtype == torch.float32
    assert at_least_float32(values).tolist() == [1.5, -3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_more_digits_are_kept_without_a_copy(dtype: torch.dtype) -> None:
    values = torch.zeros(2, dtype=dtype)
    assert at_least_float32(values) is values
