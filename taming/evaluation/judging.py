"""Measurements of sets of images by a classifier and a feature network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from taming.evaluation.bootstrap import MAX_IMAGES, frechet_interval, mean_interval
from taming.evaluation.classifier import ImageClassifier
from taming.evaluation.contract import digest_images, join_digests
from taming.evaluation.features import FeatureNetwork
from taming.evaluation.frechet import feature_statistics, frechet_distance
from taming.evaluation.kernel import kernel_distance, probability_score
from taming.evaluation.neighbours import fidelity_and_diversity
from taming.runtime.errors import replacing, writing
from taming.runtime.process_group import gather_shares

__all__ = ["JudgedImages", "Judges", "as_eight_bit", "compare_features", "in_proportion"]


@dataclass(frozen=True)
class Judges:
    """The networks that judge images; the numbers of one that is missing are left out."""

    classifier: ImageClassifier | None  # in evaluation mode
    features: FeatureNetwork | None
    device: torch.device  # where they are
    class_names: Sequence[str] = ()
    seed: int | None = 0  # of intervals, subsets and the choice of images


class JudgedImages:
    """What the judges see in one set of images, a row an image.

    Each process updates it with its `rank_share` of the batches. After `gather` the first process
    has all of them, in order, and only it may read them.

    Attributes:
        features: `(n f)`; None where they are not known, as are labels and logits.
        labels: `(n,)`.
        logits: the classifier's, `(n k)`.
        num_images: n.
        num_not_finite: how many of them hold NaN or infinite numbers.
    """

    def __init__(self, judges: Judges) -> None:
        self.judges = judges
        self._batches: list[dict[str, Tensor]] = []

    @torch.no_grad()
    def update(self, images: Tensor, labels: Tensor | None = None) -> None:
        """Adds `(b c H W)` in [-1, 1], rounded to 8 bits, and their classes `(b,)`, if any."""
        judges = self.judges
        finite = images.isfinite().all(dim=(1, 2, 3))
        images = as_eight_bit(images.to(judges.device)).nan_to_num()
        pixels = ((images + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        rows = {"digests": torch.from_numpy(digest_images(pixels)), "finite": finite}
        if judges.features is not None:
            rows["features"] = judges.features(images).float()
        if labels is not None:
            rows["labels"] = labels
        if judges.classifier is not None:
            rows["logits"] = judges.classifier(images).float()
        self._batches.append({name: values.cpu() for name, values in rows.items()})

    def gather(self) -> "JudgedImages":
        """Collects all processes' images on the first one."""
        batches = gather_shares(self._batches)
        self._batches = []
        names = batches[0] if batches else ()
        self._keep({name: torch.cat([batch[name] for batch in batches]) for name in names})
        return self

    def _keep(self, rows: dict[str, Tensor]) -> None:
        self._rows = rows
        self.features, self.labels = rows.get("features"), rows.get("labels")
        self.logits = rows.get("logits")
        self.num_images = len(rows.get("digests", ()))
        self.num_not_finite = self.num_images - int(rows["finite"].sum()) if "finite" in rows else 0

    def save_features(self, path: Path) -> None:
        """Saves the gathered features, and what they are of, as safetensors."""
        names = ("features", "digests", "labels")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, "wb") as file:
                file.write(save({name: self._rows[name] for name in names if name in self._rows}))

    def load_features(self, path: Path) -> None:
        """Loads what `save_features` saved of the same images."""
        self._keep(self._rows | load_file(path))

    @property
    def digest(self) -> str:
        """Hex digest of the images, whatever their order."""
        return join_digests(self._rows["digests"].numpy())

    def numbers(self, reference: "JudgedImages | None" = None) -> dict[str, Any]:
        """Returns `num_images` and, where they are known, more.

        `agreement` is the share of images whose own class the classifier predicts; those of the
        features are `compare_features`. With names of the classes there is `by_class`, for each its
        images, their agreement, None without images, and `instead`, the commonest wrong prediction,
        None without one. A set with images that are not finite has `num_not_finite` alone.
        """
        judges, seed = self.judges, self.judges.seed
        numbers: dict[str, Any] = {"num_images": self.num_images}
        if self.num_not_finite:
            return numbers | {"num_not_finite": self.num_not_finite}
        if self.logits is not None:
            numbers["classifier_score"] = probability_score(self.logits, seed=seed)
        if self.logits is not None and self.labels is not None:
            predictions = self.logits.argmax(1)
            hits = (predictions == self.labels).double()
            numbers["agreement"] = hits.mean().item()
            if self.num_images <= MAX_IMAGES:
                numbers["agreement_interval"] = mean_interval(hits, seed)
            if judges.class_names:
                numbers["by_class"] = _by_class(self.labels, predictions, judges.class_names)
        if self.features is not None and reference is not None and not reference.num_not_finite:
            assert judges.features is not None
            both = self.placed_features(), reference.placed_features()
            numbers |= compare_features(*both, judges.features, seed)
        return numbers

    def placed_features(self) -> Tensor:
        """Returns the features where the judges are."""
        assert self.features is not None
        return self.features.to(self.judges.device)


def compare_features(
    features: Tensor, reference: Tensor, network: FeatureNetwork, seed: int | None = 0
) -> dict[str, Any]:
    """Returns the distances of features `(n f)` to those of the reference, and their diversity.

    Those of Inception are called `fid`, `kid` and `inception_score`, those of another network
    `frechet_distance` and `kernel_distance`. Intervals are of 95%, by bootstrap, for sets of up to
    5000 images.
    """
    frechet, kernel = "frechet_distance", "kernel_distance"
    if network.is_inception:
        frechet, kernel = "fid", "kid"
    means, covariances = zip(*map(feature_statistics, (features, reference)), strict=True)
    distance = frechet_distance(*means, *covariances).item()
    numbers: dict[str, Any] = {frechet: distance}
    if 2 < len(features) <= MAX_IMAGES:
        numbers[f"{frechet}_interval"] = frechet_interval(distance, features, reference, seed)
    mean, deviation = kernel_distance(features, reference, seed=seed)
    if not math.isnan(mean):
        numbers |= {kernel: mean, f"{kernel}_deviation": deviation}
    if network.is_inception:
        numbers["inception_score"] = probability_score(network.logits(features), seed=seed)
    return numbers | fidelity_and_diversity(features, reference)


def as_eight_bit(images: Tensor) -> Tensor:
    """Rounds images in [-1, 1] to the 256 levels of a file, so that they equal what is written."""
    return ((images.float().clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def _by_class(labels: Tensor, predictions: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for label, name in enumerate(names):
        counts = predictions[labels == label].bincount(minlength=len(names))
        num_images, hits = int(counts.sum()), int(counts[label])
        counts[label] = 0
        rows.append(
            {
                "class": name,
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
