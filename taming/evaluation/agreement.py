"""Whether a classifier sees in images what they are meant to show."""

import torch
from torchmetrics import Metric

__all__ = ["ClassAgreement"]


class ClassAgreement(Metric):
    """Share of images for which a classifier names their own class first, on all ranks.

    For real images that is the classifier's accuracy; for samples, with the classes that were asked
    for, it is how far they show them, as this classifier sees it. `counts` `(k k)` int64 is the
    confusion matrix: own class by row, class named by column.
    """

    full_state_update = False

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.counts: torch.Tensor
        self.add_state(
            "counts",
            torch.zeros(num_classes, num_classes, dtype=torch.int64),
            dist_reduce_fx="sum",
        )

    def update(self, named: torch.Tensor, labels: torch.Tensor) -> None:
        """Adds the classes named and the images' own, `(b,)` int64 each."""
        num_classes = len(self.counts)
        pairs = labels * num_classes + named
        self.counts += pairs.bincount(minlength=num_classes**2).view(num_classes, num_classes)

    def compute(self) -> dict[str, torch.Tensor]:
        """`agreement`, a scalar, and `agreement_by_class` `(k,)`; NaN where there are no images."""
        right, total = self.counts.diagonal().double(), self.counts.sum(1).double()
        return {
            "agreement": right.sum() / total.sum(),
            "agreement_by_class": right / total,
        }
