"""What stage 1 measures in validation and watches in training."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torchmetrics import MeanMetric, Metric

from taming.errors import UserError
from taming.evaluation import CodebookUsage, LabelMapMetrics, ReconstructionMetrics
from taming.quantizers import QuantizerOutput
from taming.vqgan import VQGAN, VQGANOutput

__all__ = ["CodebookWindow", "Validation", "check_images"]


class Validation(nn.Module):
    """Numbers over a whole validation set, of all ranks: losses, image metrics, codebook usage.

    Args:
        vqgan: the model that is validated.
        losses: names of the loss terms, whose means over images are reported.
        of_label_maps: whether the images are one-hot label maps.
        metrics: more metrics, with `update(reconstructions, images)` and a tuple `names` of what
            their `compute` gives, and torchmetrics' `higher_is_better`.

    Attributes:
        modes: of each number, by its logged name, whether its `"min"` or its `"max"` is best.
    """

    def __init__(
        self,
        vqgan: VQGAN,
        *,
        losses: Sequence[str],
        of_label_maps: bool,
        metrics: Sequence[Metric],
    ) -> None:
        super().__init__()
        quality = (
            LabelMapMetrics(vqgan.image_channels) if of_label_maps else ReconstructionMetrics()
        )
        # NaN stays NaN; nan_strategy="disable" would ignore the sizes of the batches
        self.losses: Any = nn.ModuleDict(
            {name: MeanMetric(nan_strategy=math.nan).set_dtype(torch.float64) for name in losses}
        )
        self.images: Any = nn.ModuleList([quality, *metrics])
        self.codebook = CodebookUsage(vqgan.codebook_size)
        self.modes = dict.fromkeys((f"val/{name}" for name in losses), "min")
        for metric in (*self.images, self.codebook):
            mode = "max" if metric.higher_is_better else "min"
            self.modes |= dict.fromkeys((f"val/{name}" for name in metric.names), mode)

    def reset(self) -> None:
        """Forgets the last validation."""
        for metric in (*self.losses.values(), *self.images, self.codebook):
            metric.reset()

    def update(
        self, images: torch.Tensor, output: VQGANOutput, losses: Mapping[str, torch.Tensor]
    ) -> None:
        """Adds a batch of images `(b c H W)` and what became of them."""
        for name, value in losses.items():
            self.losses[name].update(value, len(images))
        for metric in self.images:
            metric.update(output.reconstructions.float(), images)
        self.codebook.update(output.quantizer.code_counts)

    def compute(self) -> dict[str, float]:
        """Returns the numbers by name; every rank must call it."""
        numbers = {name: metric.compute() for name, metric in self.losses.items()}
        for metric in (*self.images, self.codebook):
            numbers.update(metric.compute())
        return {name: float(value) for name, value in numbers.items()}


class CodebookWindow:
    """Codebook usage and perplexity over the newest training batches.

    A window ends when it has seen eight latents a code: were all codes equally likely, 1 − e⁻⁸ =
    99.97 % of them would be in it. Usage over a single batch would be small for any codebook.
    """

    LATENTS_PER_CODE = 8

    def __init__(self, codebook_size: int) -> None:
        self.usage = CodebookUsage(codebook_size)
        self.capacity = self.LATENTS_PER_CODE * codebook_size
        self.num_latents = 0

    def update(self, output: QuantizerOutput) -> None:
        """Adds a batch."""
        self.usage.to(output.code_counts.device).update(output.code_counts)
        self.num_latents += output.indices.numel()

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to go on with this window."""
        return {"counts": self.usage.counts, "num_latents": self.num_latents}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self.usage.reset()
        self.usage.counts = state["counts"].clone()
        self.num_latents = state["num_latents"]

    def compute_if_full(self) -> dict[str, float]:
        """Returns the two numbers of all ranks and begins a new window, if this one is full."""
        if self.num_latents < self.capacity:
            return {}
        metrics = {name: float(value) for name, value in self.usage.compute().items()}
        self.usage.reset()
        self.num_latents = 0
        return metrics


def check_images(
    vqgan: VQGAN,
    *,
    of_label_maps: bool,
    metrics: Sequence[Metric],
    perceptual: nn.Module | None,
    judged_as_pictures: bool,
) -> None:
    """Raises a `UserError` if losses and metrics do not fit the model's images.

    Args:
        vqgan: the model.
        of_label_maps: whether the loss is for one-hot label maps.
        metrics: more metrics than those of reconstructions.
        perceptual: the perceptual loss, if there is one.
        judged_as_pictures: whether there is a perceptual loss or a discriminator.
    """
    if of_label_maps != vqgan.label_maps:
        raise UserError(
            "training.reconstruction=cross_entropy and a VQGAN with label_maps=true go together, "
            "and only one of them is given (experiment=label_map sets both)."
        )
    if of_label_maps and (judged_as_pictures or metrics):
        raise UserError(
            "label maps are no pictures: training.reconstruction=cross_entropy needs "
            "perceptual=none, adversary=none and no metrics."
        )
    height, width = vqgan.resolution
    quality = () if of_label_maps else (ReconstructionMetrics(),)
    for judge in (*quality, *metrics, perceptual):
        needed = getattr(judge, "min_side", getattr(judge, "MIN_SIDE", 0))
        if min(height, width) < needed:
            raise UserError(
                f"images of {height}×{width} are too small for {type(judge).__name__}, which needs "
                f"{needed} pixels a side: use larger images, or leave it out."
            )
