"""The distances behind a code search, precise enough to compare."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["full_precision", "relative_distances"]


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiplies float32 matrices in float32.

    Training lets GPUs do it with TF32's 10 bits, which are too few to tell codes apart.
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


def relative_distances(rows: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
    """`(n d)` latents and `(v d)` codes to `(n v)`: ‖z − e‖² − ‖z‖² = ‖e‖² − 2 z·e.

    What is left out is the same for all codes of a latent: neither argmin nor softmax sees it.
    """
    with full_precision():
        return torch.addmm(codebook.square().sum(1), rows, codebook.T, alpha=-2)
