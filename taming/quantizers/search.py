"""The code search, precise enough to compare and in bounded memory."""

from collections.abc import Iterator

import torch

from taming.contexts import full_precision

__all__ = ["distance_chunks", "nearest", "relative_distances"]

CHUNK_DISTANCES = 2**26  # 256 MiB in float32


def relative_distances(rows: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
    """Returns ‖z − e‖² − ‖z‖² = ‖e‖² − 2 z·e, `(n v)`, of latents `(n d)` and codes `(v d)`.

    What is left out is the same for all codes of a latent: neither argmin nor softmax sees it.
    """
    with full_precision():
        return torch.addmm(codebook.square().sum(1), rows, codebook.T, alpha=-2)


def distance_chunks(rows: torch.Tensor, codebook: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the `relative_distances` of some latents after the other, `(n' v)` at a time.

    A chunk has at most `CHUNK_DISTANCES` elements (but at least one latent), so that the memory of
    a search does not grow with the image.
    """
    for chunk in rows.split(max(1, CHUNK_DISTANCES // len(codebook))):
        yield relative_distances(chunk, codebook)


@torch.no_grad()
def nearest(rows: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
    """Returns the index `(n,)` of the code `(v d)` nearest to each latent `(n d)`."""
    return torch.cat([chunk.argmin(1) for chunk in distance_chunks(rows, codebook)])
