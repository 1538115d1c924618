"""Sets of images as a classifier and a feature network see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from taming.evaluation import (
    ClassAgreement,
    FeatureExtractor,
    FeatureStatistics,
    ImageClassifier,
)

__all__ = ["JudgedImages", "Judges", "in_proportion"]


@dataclass(frozen=True)
class Judges:
    """Who looks at images; either may be missing, and then its numbers are.

    Attributes:
        classifier: names classes, in evaluation mode on `device`.
        features: for Fréchet distances, on `device`.
        device: where they are.
    """

    classifier: ImageClassifier | None
    features: FeatureExtractor | None
    device: torch.device


class JudgedImages:
    """What the judges saw of one set of images; its memory does not grow with the set.

    Attributes:
        num_images: images so far.
        agreement: of the classifier with the labels; None without either.
        statistics: the images' features; None without a network.
    """

    def __init__(self, judges: Judges) -> None:
        self.num_images = 0
        self.agreement: ClassAgreement | None = None
        self.statistics: FeatureStatistics | None = None
        self._judges = judges
        if judges.features is not None:
            self.statistics = FeatureStatistics(judges.features, judges.device)

    @torch.no_grad()
    def update(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> list[int] | None:
        """Adds `(b c H W)` in [-1, 1] and their classes `(b,)`; returns those the classifier names.

        None is returned where there is no classifier or are no labels.
        """
        images = images.to(self._judges.device)
        self.num_images += len(images)
        if self.statistics is not None:
            self.statistics.update(images)
        classifier = self._judges.classifier
        if classifier is None or labels is None:
            return None
        if self.agreement is None:
            self.agreement = ClassAgreement(classifier.num_classes).to(self._judges.device)
        named = classifier(images).argmax(dim=1)
        self.agreement.update(named, labels.to(self._judges.device))
        return named.tolist()

    def numbers(self, reference: "JudgedImages | None" = None) -> dict[str, Any]:
        """Number of images, and agreement and Fréchet distance to a reference where measured."""
        numbers: dict[str, Any] = {"num_images": self.num_images}
        if self.agreement is not None:
            numbers["agreement"] = self.agreement.compute()["agreement"].item()
        if self.statistics is not None and reference is not None:
            assert reference.statistics is not None
            numbers["frechet_distance"] = self.statistics.distance(reference.statistics)
        return numbers

    def by_class(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """For each class its images, their agreement, and what they are most often named instead.

        Agreement is None for a class without images, `instead` for one that is always recognised.
        """
        if self.agreement is None:
            return []
        shares = self.agreement.compute()["agreement_by_class"].tolist()
        rows = []
        for label, name in enumerate(names):
            counts = self.agreement.counts[label].clone()
            num_images = int(counts.sum())
            counts[label] = 0
            rows.append(
                {
                    "class": name,
                    "num_images": num_images,
                    "agreement": shares[label] if num_images else None,
                    "instead": names[int(counts.argmax())] if counts.any() else None,
                }
            )
        return rows


def in_proportion(labels: Sequence[int | None], count: int, seed: int) -> list[int]:
    """Numbers of `count` images, each class as often as its share of `labels` says, by class.

    Which images of a class is left to chance. Of fewer images than `count` some come several times.

    Args:
        labels: of all images; None without classes.
        count: how many to take.
        seed: of the chance.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    classes = np.array([-1 if label is None else label for label in labels])
    order = order[np.argsort(classes[order], kind="stable")]
    places = (np.arange(count) + 0.5) * len(order) / count
    return order[places.astype(np.int64)].tolist()
