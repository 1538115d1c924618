"""Sets of images as a classifier and a feature network see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from taming.evaluation.classifier import ImageClassifier
from taming.evaluation.frechet import FeatureExtractor, FeatureStatistics

__all__ = ["JudgedImages", "Judges", "in_proportion"]


@dataclass(frozen=True)
class Judges:
    """The networks that look at images; without one of them its numbers are left out.

    Attributes:
        classifier: predicts classes, in evaluation mode on `device`.
        features: for Fréchet distances, on `device`.
        device: where they are; one with float64.
    """

    classifier: ImageClassifier | None
    features: FeatureExtractor | None
    device: torch.device


class JudgedImages:
    """What the judges see in one set of images; memory does not grow with the set.

    Attributes:
        num_images: images so far.
        confusion: of the classifier, own class by row, predicted class by column; None without a
            classifier or labels.
        statistics: the images' features; None without a network.
    """

    def __init__(self, judges: Judges) -> None:
        self.num_images = 0
        self.confusion: MulticlassConfusionMatrix | None = None
        self.statistics: FeatureStatistics | None = None
        self._judges = judges
        if judges.features is not None:
            self.statistics = FeatureStatistics(judges.features).to(judges.device)

    @torch.no_grad()
    def update(self, images: Tensor, labels: Tensor | None = None) -> list[int] | None:
        """Adds `(b c H W)` in [-1, 1] and their classes `(b,)`; returns the predicted classes.

        Returns None where there is no classifier, or there are no labels.
        """
        images = images.to(self._judges.device)
        self.num_images += len(images)
        if self.statistics is not None:
            self.statistics.update(images)
        classifier = self._judges.classifier
        if classifier is None or labels is None:
            return None
        if self.confusion is None:
            metric = MulticlassConfusionMatrix(classifier.num_classes, validate_args=False)
            self.confusion = metric.to(images.device)
        predictions = classifier(images).argmax(dim=1)
        self.confusion.update(predictions, labels.to(images.device))
        return predictions.tolist()

    def numbers(self, reference: "JudgedImages | None" = None) -> dict[str, Any]:
        """Returns `num_images` and, where they are known, `agreement` and `frechet_distance`.

        They are the share of images whose own class the classifier predicts, and the distance of
        the features to those of a reference.
        """
        numbers: dict[str, Any] = {"num_images": self.num_images}
        if self.confusion is not None:
            counts = self.confusion.compute()
            numbers["agreement"] = (counts.diagonal().sum().double() / counts.sum()).item()
        if self.statistics is not None and reference is not None:
            assert reference.statistics is not None
            numbers["frechet_distance"] = self.statistics.distance(reference.statistics).item()
        return numbers

    def by_class(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Returns for each class its images, their agreement, and the commonest wrong prediction.

        `agreement` is None for a class without images, `instead` for one that is always recognised.
        """
        if self.confusion is None:
            return []
        rows = []
        for label, counts in enumerate(self.confusion.compute().clone()):
            num_images, hits = int(counts.sum()), int(counts[label])
            counts[label] = 0
            rows.append(
                {
                    "class": names[label],
                    "num_images": num_images,
                    "agreement": hits / num_images if num_images else None,
                    "instead": names[int(counts.argmax())] if counts.any() else None,
                }
            )
        return rows


def in_proportion(labels: Sequence[int | None], count: int, seed: int | None) -> list[int]:
    """Chooses `count` images, each class as often as its share of `labels`; sorted by class.

    Which images of a class is random. If there are fewer than `count`, some come several times.

    Args:
        labels: of all images; None without classes.
        count: number of images to choose.
        seed: of the random choice; None: any.

    Returns:
        Their numbers.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    classes = np.array([-1 if label is None else label for label in labels])
    order = order[np.argsort(classes[order], kind="stable")]
    positions = (np.arange(count) + 0.5) * len(order) / count
    return order[positions.astype(np.int64)].tolist()
