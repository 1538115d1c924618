"""Comparisons that show their largest error: `pytest tests/attention tests/interop -s`."""

import torch


def check(name: str, ours: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compares element by element, prints the largest error and holds it to the tolerance."""
    assert ours.shape == expected.shape, name
    largest = float((ours.double() - expected.double()).detach().abs().max())
    print(f"  {name:<30} largest error {largest:.1e}")  # noqa: T201
    assert largest < tolerance, name
