"""Nearest-code vector quantization.

van den Oord et al. 2017, "Neural Discrete Representation Learning".
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn

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
from taming.quantizers.interface import QuantizedRows, Quantizer, Size, count_codes
from taming.runtime.dtypes import at_least_float32
from taming.runtime.process_group import sum_over_ranks

__all__ = ["VectorQuantizer"]


class VectorQuantizer(Quantizer):
    """Replaces each latent by the nearest code.

    The loss is ‖sg[z] − e‖² + β‖z − sg[e]‖² (equation 3 of the paper), with means over all
    elements. The first term moves the codes; the second commits the encoder to them. An EMA
    codebook needs no first term.

    Args:
        codebook_size: number of codes.
        codebook_dim: width of a code.
        commitment_weight: β.
        cosine: compare directions. Latents and codes are l2-normalised before the search and in the
            result (Yu et al. 2022, "Vector-quantized Image Modeling with Improved VQGAN", section
            3.2).
        revive_after: move a code that no latent has chosen in this many training batches to a
            random latent of the current batch (Dhariwal et al. 2020, "Jukebox", section 3.1). None:
            never. Once all codes have started, only steps (see `set_step`) that are multiples of
            `revive_after` // 10 look for such codes, because the search takes time.
        init: where the codes start. `"uniform"`: in ±1 / codebook_size. `"data"`: at random latents
            of the first training batch. `"kmeans"`: at the centres of its clusters. If the first
            batch has fewer latents than codes, the next batches start the rest, unless they are in
            use by then. None: `"data"` with `revive_after`, else `"uniform"`.
        ema_decay: decay of moving averages by which the codes follow their latents, without
            gradient (see `CodebookAverage`). None: the codes are learned by gradient.
        entropy_weight: weight of the entropy penalty (see `entropy_penalty`).
        entropy_temperature: its temperature, in units of the squared distance.
        gradient: `"straight_through"` or `"rotation"` (see `taming.quantizers.gradient`).

    Attributes:
        batches_unused: `(codebook_size,)` int64, number of training batches since a latent last
            chose a code (counted with `revive_after`).
        started: `(codebook_size,)` bool, False for a code that waits to start at a latent.
        moved: `(codebook_size,)` bool, True for a code that this step has moved to a latent.
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
        self.batches_unused: Tensor
        self.started: Tensor
        self.moved: Tensor
        self.register_buffer("batches_unused", torch.zeros(codebook_size, dtype=torch.int64))
        self.register_buffer("started", torch.full((codebook_size,), init == "uniform"))
        nothing_moved = torch.zeros(codebook_size, dtype=torch.bool)
        self.register_buffer("moved", nothing_moved, persistent=False)
        self._step = 0
        # On the host, because reading the buffer would wait for the GPU.
        self._all_started = init == "uniform"

    def set_step(self, step: int) -> None:
        """Sets the step, because only some steps look for unused codes."""
        if step != self._step:  # and not another batch of the same step
            self.moved.fill_(False)
        self._step = step

    def quantize_rows(self, rows: Tensor) -> QuantizedRows:
        """Finds the codes nearest to `(n d)` latents; training also updates the codebook."""
        rows = self._comparable(rows)
        if self.training and (self._starts_now() or self._revives_now()):
            self._move_unused_codes(rows.detach())
        # A copy, because the moving average changes the codebook before the backward pass.
        codebook = self._comparable(self.codebook.to(rows).clone())  # (v d)
        distances: Iterable[Tensor]
        if self.entropy_weight > 0 and torch.is_grad_enabled():
            whole = relative_distances(rows, codebook)  # (n v), for the backward pass
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

    def codes_of(self, indices: Tensor) -> Tensor:
        """Returns the codes `(... d)` of indices `(...)`, normalised if `cosine`."""
        return F.embedding(indices, self._comparable(at_least_float32(self.codebook)))

    def _comparable(self, rows: Tensor) -> Tensor:
        return F.normalize(rows, dim=-1) if self.cosine else rows

    def _starts_now(self) -> bool:
        self._all_started = self._all_started or bool(self.started.all())
        return not self._all_started

    def _revives_now(self) -> bool:
        # A function of the step, so that a resumed run revives codes in the same batches.
        return self.revive_after is not None and self._step % max(1, self.revive_after // 10) == 0

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._all_started = False  # unknown; `_starts_now` looks

    @torch.no_grad()
    def _move_unused_codes(self, rows: Tensor) -> None:
        latents, valid = random_rows(rows, self.codebook_size)
        unused = ~self.started  # (v,)
        if self.revive_after is not None:
            unused |= self.batches_unused >= self.revive_after
        if self.init == "kmeans" and not self._all_started and unused.all():  # the first batch
            latents[valid] = kmeans(rows, latents[valid], spherical=self.cosine)
        # The k-th unused code takes the k-th latent. Indexing by the mask would wait for the GPU.
        number = (unused.cumsum(0) - 1).clamp(min=0)  # (v,)
        latents, is_new = latents[number], unused & valid[number]
        self.codebook.copy_(torch.where(is_new[:, None], latents.to(self.codebook), self.codebook))
        self.batches_unused.masked_fill_(is_new, 0)
        self.started |= is_new
        self.moved |= is_new
        if self.average is not None:
            self.average.restart(is_new, latents)

    @torch.no_grad()
    def _follow(self, rows: Tensor, indices: Tensor) -> None:
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
