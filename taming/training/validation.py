"""The metrics of stage 1 in validation."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torchmetrics import Metric, MetricCollection

from taming.evaluation import CodebookUsage, ExactMean, LabelMapMetrics, ReconstructionMetrics
from taming.tokenizer import VQGAN, VQGANOutput

__all__ = ["Validation"]


class Validation(nn.Module):
    """Losses, image metrics and codebook usage over the validation sets of all ranks.

    Losses are averaged over images. The `update` of a metric takes `reconstructions` and `images`,
    its `names` are the keys of its `compute`, and `higher_is_better` is as in torchmetrics.

    Attributes:
        modes: `"min"` or `"max"`, whichever is best, by the logged name of each metric.
    """

    def __init__(self, vqgan: VQGAN, losses: Sequence[str], metrics: Sequence[Metric]) -> None:
        super().__init__()
        quality = (
            LabelMapMetrics(vqgan.image_channels) if vqgan.label_maps else ReconstructionMetrics()
        )
        means: dict[str, Any] = {name: ExactMean() for name in losses}
        all_metrics: list[Any] = [quality, *metrics, CodebookUsage(vqgan.codebook_size)]
        self.losses: Any = MetricCollection(means, compute_groups=False)
        self.metrics: Any = MetricCollection(all_metrics, compute_groups=False)
        self.modes = dict.fromkeys((f"val/{name}" for name in losses), "min")
        for metric in all_metrics:
            mode = "max" if metric.higher_is_better else "min"
            self.modes |= dict.fromkeys((f"val/{name}" for name in metric.names), mode)

    def reset(self) -> None:
        self.losses.reset()
        self.metrics.reset()

    def update(
        self, images: torch.Tensor, output: VQGANOutput, losses: Mapping[str, torch.Tensor]
    ) -> None:
        """Adds a batch of images `(b c H W)`, the output of the model and its losses."""
        for name, value in losses.items():
            self.losses[name].update(value, len(images))
        self.metrics.update(
            reconstructions=output.reconstructions.float(),
            images=images,
            code_counts=output.quantizer.code_counts,
        )

    def compute(self) -> dict[str, float]:
        """Returns the metrics by name; every rank must call it."""
        metrics = {**self.losses.compute(), **self.metrics.compute()}
        return {name: float(value) for name, value in metrics.items()}
