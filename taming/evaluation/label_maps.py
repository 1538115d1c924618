"""How well label maps are reconstructed, over a whole data set."""

import torch
from torchmetrics import Metric

__all__ = ["LabelMapMetrics"]


class LabelMapMetrics(Metric):
    """Pixel accuracy and mean intersection over union, from one confusion matrix of all pixels.

    A pixel's class is its channel with the largest value. Mean IoU is the mean, over the classes
    that occur in the images or the reconstructions, of TP / (TP + FP + FN) (Everingham et al. 2010,
    "The PASCAL VOC Challenge", §4.3). The class of unlabelled pixels counts like any other: a
    tokenizer must reproduce it too.
    """

    names = ("pixel_accuracy", "mean_iou")  # that `compute` gives
    higher_is_better = True
    full_state_update = False

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.confusion: torch.Tensor  # (true class, reconstructed class) pixels
        zeros = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.add_state("confusion", zeros, dist_reduce_fx="sum")

    def update(self, reconstructions: torch.Tensor, images: torch.Tensor) -> None:
        """Adds two `(b c H W)`: logits and one-hot label maps."""
        pairs = images.argmax(1) * self.num_classes + reconstructions.argmax(1)
        counts = torch.bincount(pairs.flatten(), minlength=self.num_classes**2)
        self.confusion += counts.view_as(self.confusion)

    def compute(self) -> dict[str, torch.Tensor]:
        """`pixel_accuracy` and `mean_iou`, both in [0, 1]."""
        confusion = self.confusion.double()
        hits = confusion.diagonal()
        unions = confusion.sum(0) + confusion.sum(1) - hits
        occurs = unions > 0
        return {
            "pixel_accuracy": hits.sum() / confusion.sum(),
            "mean_iou": (hits[occurs] / unions[occurs]).mean(),
        }
