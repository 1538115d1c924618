"""Nearest-code vector quantization.

van den Oord et al. 2017, "Neural Discrete Representation Learning".
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import nn

from taming.quantizers.codebook import (
    CodebookAverage,
    distance_chunks,
    kmeans,
    nearest,
    random_rows,
    relative_distances,
)
from taming.quantizers.entropy import entropy_penalty
from taming.quantizers.gradient import GRADIENTS
from taming.quantizers.interface import Quantizer, Size, count_codes
from taming.runtime.process_group import sum_over_ranks

__all__ = ["VectorQuantizer"]


class VectorQuantizer(Quantizer):
    """Replaces each latent by the nearest code.

    The loss is ‖sg[z] − e‖² + β‖z − sg[e]‖² (eq. 3 of the paper), each a mean over all elements:
    the first term moves the codes, the second, with β, commits the encoder to them. An EMA codebook
    does without the first.

    Args:
        codebook_size: number of codes.
        codebook_dim: width of a code.
        commitment_weight: β.
        cosine: compare directions: latents and codes are l2-normalised before the search and in the
            result (Yu et al. 2022, "Vector-quantized Image Modeling with Improved VQGAN", §3.2).
        revive_after: a code that no latent has chosen in this many training batches is moved to a
            random latent of the current batch (Dhariwal et al. 2020, "Jukebox", §3.1). None: never.
            Looking for such codes is not free, so it is done in steps (see `set_step`) that are
            multiples of `revive_after` // 10 only, once all codes have started.
        init: where the codes start: `"uniform"` in ±1 / codebook_size; `"data"`: at random latents
            of the first training batch; `"kmeans"`: at the centres of its clusters. Codes that a
            small first batch leaves without a latent take those of the next batches, unless they
            have come into use. None: `"data"` with `revive_after`, else `"uniform"`.
        ema_decay: the codes follow the latents that choose them as moving averages with this decay
            (see `CodebookAverage`) and take no gradient. None: they are learned by gradient.
        entropy_weight: of the entropy penalty (see `entropy_penalty`); 0: none.
        entropy_temperature: its temperature, in units of the squared distance.
        gradient: `"straight_through"` or `"rotation"` (see `taming.quantizers.gradient`).

    Attributes:
        batches_unused: `(codebook_size,)` int64, for how many training batches no latent has chosen
            a code (counted with `revive_after`).
        started: `(codebook_size,)` bool, False for a code that waits to start at a latent.
    """

    advice: ClassVar[str] = (
        "Use model.quantizer.cosine=true with a codebook_dim of 8 to 16, "
        "model.quantizer.revive_after=100, or a smaller model.quantizer.codebook_size."
    )
    training_settings: ClassVar[tuple[str, ...]] = (
        "commitment_weight", "revive_after", "entropy_weight", "entropy_temperature", "gradient",
    )  # fmt: skip

    def __init__(
        self,
        *,
        codebook_size: Size,
        codebook_dim: Size,
        commitment_weight: Annotated[float, Ge(0)] = 0.25,
        cosine: bool = False,
        revive_after: Size | None = None,
        init: Literal["uniform", "data", "kmeans"] | None = None,
        ema_decay: Annotated[float, Gt(0), Lt(1)] | None = None,
        entropy_weight: Annotated[float, Ge(0)] = 0.0,
        entropy_temperature: Annotated[float, Gt(0)] = 0.01,
        gradient: Literal["straight_through", "rotation"] = "straight_through",
    ) -> None:
        super().__init__()
        init = init or ("uniform" if revive_after is None else "data")
        self.codebook_size = codebook_size
        self.codebook_dim = codebook_dim
        self.commitment_weight = commitment_weight
        self.cosine = cosine
        self.revive_after = revive_after
        self.entropy_weight = entropy_weight
        self.entropy_temperature = entropy_temperature
        self.through_lookup = GRADIENTS[gradient]
        self.codebook = nn.Parameter(torch.empty(codebook_size, codebook_dim))
        nn.init.uniform_(self.codebook, -1 / codebook_size, 1 / codebook_size)
        self.average: CodebookAverage | None = None
        if ema_decay is not None:
            self.codebook.requires_grad_(False)
            self.average = CodebookAverage(self.codebook, ema_decay)
        self.init = init
        self.batches_unused: torch.Tensor
        self.started: torch.Tensor
        self.register_buffer("batches_unused", torch.zeros(codebook_size, dtype=torch.int64))
        self.register_buffer("started", torch.full((codebook_size,), init == "uniform"))
        self._step = 0
        self._all_started = init == "uniform"  # on the host: reading the buffer waits for the GPU

    def set_step(self, step: int) -> None:
        """Remembers the step: only some steps look for unused codes."""
        self._step = step

    def quantize_rows(
        self, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Finds the codes nearest to `(n d)` latents; training also updates the codebook."""
        rows = self._comparable(rows)
        if self.training and (self._starts_now() or self._revives_now()):
            self._move_unused_codes(rows.detach())
        # a copy, as the moving average changes the codebook before the backward pass
        codebook = self._comparable(self.codebook.float().clone())  # (v d)
        distances: Iterable[torch.Tensor]
        if self.entropy_weight > 0 and torch.is_grad_enabled():
            whole = relative_distances(rows, codebook)  # (n v), which the backward pass needs
            indices, distances = whole.argmin(1), [whole]
        else:
            indices, distances = nearest(rows, codebook), distance_chunks(rows, codebook)
        codes = F.embedding(indices, codebook)  # (n d)
        losses = {"commitment_loss": self.commitment_weight * F.mse_loss(rows, codes.detach())}
        if self.average is None:
            losses["codebook_loss"] = F.mse_loss(codes, rows.detach())
        if self.entropy_weight > 0:
            losses["entropy_loss"] = self.entropy_weight * entropy_penalty(
                distances, self.entropy_temperature, over_ranks=self.training
            )
        if self.training:
            self._follow(rows.detach(), indices)
        return self.through_lookup(rows, codes), indices, losses

    def codes_of(self, indices: torch.Tensor) -> torch.Tensor:
        """Returns the codes `(... d)`, float32, normalised if `cosine`, of indices `(...)`."""
        return F.embedding(indices, self._comparable(self.codebook.float()))

    def _comparable(self, rows: torch.Tensor) -> torch.Tensor:
        return F.normalize(rows, dim=-1) if self.cosine else rows

    def _starts_now(self) -> bool:
        self._all_started = self._all_started or bool(self.started.all())
        return not self._all_started

    def _revives_now(self) -> bool:
        # a function of the step, so that a resumed run does it in the same batches
        return self.revive_after is not None and self._step % max(1, self.revive_after // 10) == 0

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._all_started = False  # perhaps

    @torch.no_grad()
    def _move_unused_codes(self, rows: torch.Tensor) -> None:
        latents, valid = random_rows(rows, self.codebook_size)
        unused = ~self.started  # (v,)
        if self.revive_after is not None:
            unused |= self.batches_unused >= self.revive_after
        if self.init == "kmeans" and not self._all_started and unused.all():  # the first batch
            latents[valid] = kmeans(rows, latents[valid], spherical=self.cosine)
        # the k-th unused code takes the k-th latent; without counting, which would wait for the GPU
        turn = (unused.cumsum(0) - 1).clamp(min=0)
        latents, moved = latents[turn], unused & valid[turn]
        self.codebook.copy_(torch.where(moved[:, None], latents.to(self.codebook), self.codebook))
        self.batches_unused.masked_fill_(moved, 0)
        self.started |= moved
        if self.average is not None:
            self.average.restart(moved, latents)

    @torch.no_grad()
    def _follow(self, rows: torch.Tensor, indices: torch.Tensor) -> None:
        if self.average is None and self.revive_after is None and self._all_started:
            return
        counts = count_codes(indices, self.codebook_size)
        if self.average is None:
            counts = sum_over_ranks(counts)
        else:
            codes, counts = self.average.update(rows, indices, counts, self.codebook)
            self.codebook.copy_(self._comparable(codes))
        if self.revive_after is not None:
            self.batches_unused.add_(1)
        self.batches_unused.masked_fill_(counts > 0, 0)
        self.started |= counts > 0
