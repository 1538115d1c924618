"""Measurements of image sets by a classifier, a feature network and a tokenizer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix

from taming.evaluation.classifier import ImageClassifier
from taming.evaluation.frechet import FeatureExtractor, FeatureStatistics
from taming.evaluation.metrics import CodebookUsage, ReconstructionMetrics, TokenLikelihood
from taming.ranks import sum_over_ranks
from taming.sequence import to_tokens
from taming.vqgan import VQGAN

__all__ = ["JudgedImages", "Judges", "in_proportion", "measure_validation"]

Batch = dict[str, Any]


@dataclass(frozen=True)
class Judges:
    """The networks that judge images; the numbers of one that is missing are left out."""

    classifier: ImageClassifier | None  # in evaluation mode
    features: FeatureExtractor | None  # for Fréchet distances
    device: torch.device  # where they are; one with float64


class JudgedImages:
    """Measurements of one set of images; memory does not grow with the set.

    Several processes each have a part of the set; `numbers` are of the whole.
    """

    def __init__(self, judges: Judges) -> None:
        self._judges = judges
        self.num_images = 0
        # own class by row, predicted class by column
        self.confusion: MulticlassConfusionMatrix | None = None
        if judges.classifier is not None:
            metric = MulticlassConfusionMatrix(judges.classifier.num_classes, validate_args=False)
            self.confusion = metric.to(judges.device)
        self.statistics: FeatureStatistics | None = None
        if judges.features is not None:
            self.statistics = FeatureStatistics(judges.features).to(judges.device)

    @torch.no_grad()
    def update(self, images: Tensor, labels: Tensor | None = None) -> list[int | None]:
        """Adds `(b c H W)` in [-1, 1] and, for a classifier, their classes `(b,)`.

        Returns the classifier's predictions, None without one.
        """
        images = images.to(self._judges.device)
        self.num_images += len(images)
        if self.statistics is not None:
            self.statistics.update(images)
        if self._judges.classifier is None or self.confusion is None:
            return [None] * len(images)
        assert labels is not None
        predictions = self._judges.classifier(images).argmax(dim=1)
        self.confusion.update(predictions, labels.to(images.device))
        return predictions.tolist()

    def numbers(
        self, reference: "JudgedImages | None" = None, class_names: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Returns `num_images` and, where they are known, more.

        `agreement` is the share of images whose own class the classifier predicts,
        `frechet_distance` that of the features to those of the reference. With names of the
        classes there is `by_class`, for each its images, their agreement, None without images, and
        `instead`, the commonest wrong prediction, None without one.
        """
        num_images = torch.tensor(self.num_images, device=self._judges.device)
        numbers: dict[str, Any] = {"num_images": int(sum_over_ranks(num_images))}
        if self.confusion is not None:
            counts = self.confusion.compute()
            numbers["agreement"] = (counts.diagonal().sum().double() / counts.sum()).item()
        if self.statistics is not None and reference is not None:
            assert reference.statistics is not None
            numbers["frechet_distance"] = self.statistics.distance(reference.statistics).item()
        if self.confusion is not None and class_names is not None:
            numbers["by_class"] = _by_class(self.confusion.compute(), class_names)
        return numbers


def _by_class(confusion: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for label, counts in enumerate(confusion.clone()):
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
    Labels are None without classes. Returns the images' numbers.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    classes = np.array([-1 if label is None else label for label in labels])
    order = order[np.argsort(classes[order], kind="stable")]
    positions = (np.arange(count) + 0.5) * len(order) / count
    return order[positions.astype(np.int64)].tolist()


@torch.no_grad()
def measure_validation(
    tokenizer: VQGAN,
    batches: Iterable[Batch],
    judges: Judges,
    losses: Mapping[str, Callable[[Tensor, Batch], Tensor]],
) -> tuple[JudgedImages, dict[str, Any]]:
    """Measures a tokenizer and, by its tokens' likelihood, a transformer.

    `batches` are `images` `(b c H W)` in [-1, 1] and, with classes, `labels` `(b,)`. `losses` are
    functions of tokens `(b n)` and their batch that return −log p of each token, by the name of the
    likelihood in the result.

    Returns the images as judged, and the numbers: `reconstructions` and each likelihood.
    """
    real, reconstructed = JudgedImages(judges), JudgedImages(judges)
    quality = ReconstructionMetrics().to(judges.device)
    codebook = CodebookUsage(tokenizer.codebook_size).to(judges.device)
    likelihoods = {name: TokenLikelihood().to(judges.device) for name in losses}
    device = tokenizer.last_layer.device
    for batch in batches:
        images, labels = batch["images"].to(device), batch.get("labels")
        indices = tokenizer.encode(images)  # (b h w)
        reconstructions = tokenizer.decode(indices).float().clamp(-1, 1)
        tokens = to_tokens(indices)
        for name, likelihood in likelihoods.items():
            likelihood.update(losses[name](tokens, batch).to(judges.device))
        real.update(images, labels)
        reconstructed.update(reconstructions, labels)
        quality.update(reconstructions.to(judges.device), images.to(judges.device))
        counts = indices.flatten().bincount(minlength=tokenizer.codebook_size)
        codebook.update(counts.to(judges.device))
    numbers: dict[str, Any] = {
        "reconstructions": {**reconstructed.numbers(real), **_plain(quality), **_plain(codebook)}
    }
    for name, likelihood in likelihoods.items():
        num_tokens = int(sum_over_ranks(likelihood.weight))
        numbers[name] = {"num_tokens": num_tokens, **_plain(likelihood)}
    return real, numbers


def _plain(metric: Metric) -> dict[str, float]:
    return {name: value.item() for name, value in metric.compute().items()}
