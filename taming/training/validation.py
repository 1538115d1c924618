"""What stage 1 measures in validation, and what it cannot measure."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn
from torchmetrics import Metric

from taming.errors import UserError
from taming.evaluation import CodebookUsage, LabelMapMetrics, ReconstructionMetrics
from taming.vqgan import VQGAN, VQGANOutput

__all__ = ["Validation", "check_images"]


class Validation(nn.Module):
    """Numbers over a whole validation set, of all ranks: losses, image metrics, codebook usage.

    Args:
        vqgan: of which the reconstructions are.
        losses: names of the loss terms, of which means over images are taken.
        of_label_maps: whether the images are one-hot label maps.
        metrics: more of them, with `update(reconstructions, images)`, `names` of what their
            `compute` gives, and torchmetrics' `higher_is_better`.

    Attributes:
        modes: of each number, whether its `"min"` or its `"max"` is good.
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
        self.losses = nn.ModuleDict({name: _ImageMean() for name in losses})
        self.images = nn.ModuleList([quality, *metrics])
        self.codebook = CodebookUsage(vqgan.codebook_size)
        self.modes = dict.fromkeys(losses, "min")
        for metric in (*_metrics(self.images), self.codebook):
            names = getattr(metric, "names", None)
            if not isinstance(names, tuple):
                raise UserError(
                    f"{type(metric).__name__} cannot be one of the metrics: give it `names`, a "
                    "tuple of what the numbers of its `compute` are called."
                )
            self.modes |= dict.fromkeys(names, "max" if metric.higher_is_better else "min")

    def reset(self) -> None:
        """Forgets the last validation."""
        for metric in (*_metrics(self.losses), *_metrics(self.images), self.codebook):
            metric.reset()

    def update(
        self, images: torch.Tensor, output: VQGANOutput, losses: Mapping[str, torch.Tensor]
    ) -> None:
        """Adds a batch of images `(b c H W)` and what became of them."""
        for name, value in losses.items():
            self.losses[name].update(value, len(images))  # type: ignore[operator]
        for metric in _metrics(self.images):
            metric.update(output.reconstructions.float(), images)
        self.codebook.update(output.quantizer.code_counts)

    def compute(self) -> dict[str, float]:
        """The numbers by name; every rank must call it."""
        numbers = {name: metric.compute() for name, metric in self.losses.items()}  # type: ignore[operator]
        for metric in (*_metrics(self.images), self.codebook):
            numbers.update(metric.compute())
        return {name: float(value) for name, value in numbers.items()}


class _ImageMean(Metric):
    """A mean over images of what is given as means over batches; NaN stays NaN."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.total: torch.Tensor
        self.num_images: torch.Tensor
        for name in ("total", "num_images"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, mean: torch.Tensor, num_images: int) -> None:
        self.total += mean.double() * num_images
        self.num_images += num_images

    def compute(self) -> torch.Tensor:
        return self.total / self.num_images


def _metrics(modules: nn.ModuleDict | nn.ModuleList) -> Iterator[Metric]:
    for module in modules.children():
        assert isinstance(module, Metric)
        yield module


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
        metrics: besides PSNR and SSIM, or, of label maps, accuracy and IoU.
        perceptual: the perceptual loss, if there is one.
        judged_as_pictures: whether there is a perceptual loss or a discriminator.
    """
    channels, (height, width) = vqgan.image_channels, vqgan.resolution
    if of_label_maps and channels < 2:
        raise UserError(
            "training.reconstruction=cross_entropy is for one-hot label maps of two classes or "
            f"more, and the images have {channels} channel: use data=label_maps."
        )
    if of_label_maps and not vqgan.label_maps:
        raise UserError(
            "training.reconstruction=cross_entropy is for label maps, and the model's images are "
            "pictures: give a VQGAN with label_maps=true, or choose l1 or l2."
        )
    if of_label_maps and (judged_as_pictures or metrics):
        raise UserError(
            "training.reconstruction=cross_entropy is for label maps, which are no pictures: set "
            "perceptual=none and adversary=none, and add no metrics."
        )
    if not of_label_maps and vqgan.label_maps:
        raise UserError(
            f"the model's images, of {channels} channels, are label maps: they need "
            "training.reconstruction=cross_entropy (experiment=label_map sets it)."
        )
    if not of_label_maps and min(height, width) < ReconstructionMetrics.MIN_SIDE:
        raise UserError(
            f"images of {height}×{width} are too small: SSIM needs "
            f"{ReconstructionMetrics.MIN_SIDE} pixels or more a side."
        )
    if min(height, width) < getattr(perceptual, "min_side", 0):
        raise UserError(
            f"images of {height}×{width} are too small for the perceptual loss, which needs "
            f"{perceptual.min_side} pixels a side: use perceptual=none, or larger images."  # type: ignore[union-attr]
        )
    for metric in metrics:
        if min(height, width) < getattr(metric, "min_side", 0):
            raise UserError(
                f"images of {height}×{width} are too small for {type(metric).__name__}, which "
                f"needs {metric.min_side} pixels a side."
            )
