"""Nearest-code vector quantization.

van den Oord et al. 2017, "Neural Discrete Representation Learning".
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from taming.errors import UserError
from taming.quantizers.interface import Quantizer, QuantizerOutput

__all__ = ["VectorQuantizer"]


class VectorQuantizer(Quantizer):
    """The nearest code, with a straight-through gradient.

    The loss is ‖sg[z] − e‖² + β‖z − sg[e]‖² (eq. 3 of the paper), each a mean over all elements:
    the first term moves the codes, the second, with β, commits the encoder to them.

    Args:
        codebook_size: number of codes.
        codebook_dim: width of a code.
        commitment_weight: β.
        cosine: compare directions: latents and codes are l2-normalised before the search and in the
            result (Yu et al. 2022, "Vector-quantized Image Modeling with Improved VQGAN", §3.2).
        revive_after: a code that no latent has chosen in this many training batches is moved to a
            random latent of the current batch (Dhariwal et al. 2020, "Jukebox", §3.1). As no code
            has been chosen before the first batch, it also initialises the codebook from data.
            None: never.
    """

    def __init__(
        self,
        *,
        codebook_size: int,
        codebook_dim: int,
        commitment_weight: float = 0.25,
        cosine: bool = False,
        revive_after: int | None = None,
    ) -> None:
        super().__init__()
        if codebook_size < 1 or codebook_dim < 1:
            raise UserError("quantizer: codebook_size and codebook_dim must be at least 1.")
        if revive_after is not None and revive_after < 1:
            raise UserError(
                f"quantizer: revive_after must be at least 1 or null, not {revive_after}."
            )
        self.codebook_size = codebook_size
        self.codebook_dim = codebook_dim
        self.commitment_weight = commitment_weight
        self.cosine = cosine
        self.revive_after = revive_after
        self.codebook = nn.Parameter(torch.empty(codebook_size, codebook_dim))
        nn.init.uniform_(self.codebook, -1 / codebook_size, 1 / codebook_size)
        self.batches_unused: torch.Tensor
        self.register_buffer(
            "batches_unused", torch.full((codebook_size,), revive_after or 0, dtype=torch.int64)
        )

    def forward(self, latents: torch.Tensor) -> QuantizerOutput:
        """`(b d h w)` latents; the search and the losses are in float32 whatever the autocast."""
        with torch.autocast(latents.device.type, enabled=False):
            b, d, h, w = latents.shape
            rows = self._comparable(latents.float().permute(0, 2, 3, 1).reshape(-1, d))  # (n d)
            if self.training and self.revive_after is not None:
                self._revive(rows.detach())
            codebook = self._comparable(self.codebook.float())  # (v d)
            indices = self._nearest(rows.detach(), codebook.detach())  # (n,)
            codes = F.embedding(indices, codebook)  # (n d)
            losses = {
                "codebook_loss": F.mse_loss(codes, rows.detach()),
                "commitment_loss": self.commitment_weight * F.mse_loss(rows, codes.detach()),
            }
            quantized = rows + (codes - rows).detach()
            counts = torch.bincount(indices, minlength=self.codebook_size)
            if self.training and self.revive_after is not None:
                self._count_unused(counts)
        return QuantizerOutput(
            quantized=quantized.reshape(b, h, w, d).permute(0, 3, 1, 2),
            indices=indices.reshape(b, h, w),
            losses=losses,
            code_counts=counts,
        )

    def lookup(self, indices: torch.Tensor) -> torch.Tensor:
        """`(b h w)` int64 to `(b d h w)` float32."""
        return F.embedding(indices, self._comparable(self.codebook.float())).permute(0, 3, 1, 2)

    def _comparable(self, rows: torch.Tensor) -> torch.Tensor:
        return F.normalize(rows, dim=-1) if self.cosine else rows

    @staticmethod
    def _nearest(rows: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
        # argmin ‖z − e‖² = argmin ‖e‖² − 2 z·e
        with _full_precision():
            distances = torch.addmm(codebook.square().sum(1), rows, codebook.T, alpha=-2)  # (n v)
        return distances.argmin(1)

    @torch.no_grad()
    def _revive(self, rows: torch.Tensor) -> None:
        assert self.revive_after is not None
        dead = (self.batches_unused >= self.revive_after).nonzero().squeeze(1)
        if len(dead) == 0:
            return
        chosen = torch.randperm(len(rows), device=rows.device)[: len(dead)]
        dead = dead[: len(chosen)]
        replacement = rows[chosen]
        if dist.is_initialized():  # every rank takes the first one's latents
            dist.broadcast(replacement, src=0)
        self.codebook.data[dead] = replacement.to(self.codebook.dtype)
        self.batches_unused[dead] = 0

    @torch.no_grad()
    def _count_unused(self, counts: torch.Tensor) -> None:
        if dist.is_initialized():
            counts = counts.clone()
            dist.all_reduce(counts)
        self.batches_unused.add_(1).masked_fill_(counts > 0, 0)


@contextmanager
def _full_precision() -> Iterator[None]:
    # training lets GPUs multiply float32 matrices with TF32's 10 bits: too few to compare distances
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
