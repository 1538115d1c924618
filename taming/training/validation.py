"""What stage 1 measures in validation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torchmetrics import MeanMetric, Metric

from taming.evaluation import CodebookUsage, LabelMapMetrics, ReconstructionMetrics
from taming.vqgan import VQGAN, VQGANOutput

__all__ = ["Validation"]


class Validation(nn.Module):
    """Numbers over a whole validation set, of all ranks: losses, image metrics, codebook usage.

    Args:
        vqgan: the model that is validated.
        losses: names of the loss terms, whose means over images are reported.
        metrics: more metrics, with `update(reconstructions, images)` and a tuple `names` of what
            their `compute` gives, and torchmetrics' `higher_is_better`.

    Attributes:
        modes: whether `"min"` or `"max"` is best, by the logged name of each number.
    """

    def __init__(self, vqgan: VQGAN, losses: Sequence[str], metrics: Sequence[Metric]) -> None:
        super().__init__()
        # NaN stays NaN; nan_strategy="disable" would ignore the sizes of the batches
        self.losses: Any = nn.ModuleDict(
            {name: MeanMetric(nan_strategy=math.nan).set_dtype(torch.float64) for name in losses}
        )
        quality = (
            LabelMapMetrics(vqgan.image_channels) if vqgan.label_maps else ReconstructionMetrics()
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
        """Adds a batch of images `(b c H W)`, what the model made of them, and its losses."""
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
