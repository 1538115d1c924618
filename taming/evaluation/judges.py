"""Judges: a classifier and a feature network that measure sets of images."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from taming.evaluation.classifier import ImageClassifier
from taming.evaluation.distances import (
    feature_statistics,
    frechet_distance,
    frechet_interval,
    kernel_distance,
)
from taming.evaluation.features import FeatureNetwork
from taming.evaluation.intervals import share_interval
from taming.evaluation.neighbours import fidelity_and_diversity
from taming.losses import LPIPSLoss
from taming.runtime.errors import replacing, writing
from taming.runtime.process_group import gather_shares

__all__ = ["JudgedImages", "Judges", "as_eight_bit", "compare_features", "gather_rows",
    "in_proportion", "probability_score", "save_rows", "split_score"]  # fmt: skip


@dataclass(frozen=True)
class Judges:
    """The networks that judge images. Without one of them its numbers are not measured.

    Attributes:
        classifier: in evaluation mode.
        features: the feature network.
        device: where both networks are.
        class_names: in the order of the labels; empty without classes.
        seed: of intervals, subsets and the choice of images.
        lpips: compares reconstructions with their images.
        spatial: whether to keep the spatial features of sFID, which Inception has.
    """

    classifier: ImageClassifier | None
    features: FeatureNetwork | None
    device: torch.device
    class_names: Sequence[str] = ()
    seed: int | None = 0
    lpips: LPIPSLoss | None = None
    spatial: bool = False


class JudgedImages:
    """What the judges see in a set of images, one row per image.

    Each process updates with its `rank_share` of the batches. After `gather` the first process has
    all rows in order, and only it may read them.

    Args:
        judges: the networks that judge.
        originals: the images whose reconstructions these are, in the same order; None for images
            that belong to no others. `numbers` compares them in pairs.

    Attributes:
        features: `(n f)`; None without a feature network.
        spatial: features of sFID `(n s)`; None if the judges do not keep them.
        labels: `(n,)`; None without classes.
        logits: of the classifier, `(n k)`; None without one.
        num_images: n.
        num_not_finite: how many images hold NaN or infinite numbers.
    """

    def __init__(self, judges: Judges, originals: "JudgedImages | None" = None) -> None:
        self.judges, self.originals = judges, originals
        self._batches: list[dict[str, Tensor]] = []

    @torch.no_grad()
    def update(self, images: Tensor, labels: Tensor | None = None) -> None:
        """Adds `(b c H W)` in [-1, 1], rounded to 8 bits, and their classes `(b,)`, if any."""
        judges = self.judges
        finite = images.isfinite().all(dim=(1, 2, 3))
        images = as_eight_bit(images.to(judges.device)).nan_to_num()
        pixels = ((images + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        rows = {"digests": _digests(pixels), "finite": finite}
        if judges.features is not None and judges.spatial:
            rows["features"], rows["spatial"] = judges.features.with_spatial(images)
        elif judges.features is not None:
            rows["features"] = judges.features(images).float()
        if labels is not None:
            rows["labels"] = labels
        if judges.classifier is not None:
            rows["logits"] = judges.classifier(images).float()
        self._batches.append({name: values.cpu() for name, values in rows.items()})

    def gather(self) -> "JudgedImages":
        """Collects the images of all processes on the first one."""
        self._set_rows(gather_rows(self._batches))
        self._batches = []
        return self

    def _set_rows(self, rows: dict[str, Tensor]) -> None:
        self._rows = rows
        self.features, self.labels = rows.get("features"), rows.get("labels")
        self.logits, self.spatial = rows.get("logits"), rows.get("spatial")
        self.num_images = len(rows.get("digests", ()))
        self.num_not_finite = self.num_images - int(rows["finite"].sum()) if "finite" in rows else 0

    def save_features(self, path: Path) -> None:
        """Saves features, digests and labels as safetensors, for `load_features`."""
        names = ("features", "spatial", "digests", "labels")
        save_rows(path, {name: self._rows[name] for name in names if name in self._rows})

    def load_features(self, path: Path) -> None:
        """Loads a file that `save_features` wrote for the same images."""
        self._set_rows(self._rows | load_file(path))

    @property
    def digest(self) -> str:
        """Hex digest of the set of images, the same in any order."""
        rows = sorted(row.tobytes() for row in self._rows["digests"].numpy())
        return hashlib.sha256(b"".join(rows)).hexdigest()

    def numbers(self, reference: "JudgedImages | None" = None) -> dict[str, Any]:
        """Returns `num_images` and the numbers of the judges.

        `agreement` is the share of images whose own class the classifier predicts. With class
        names, `by_class` lists for each class its images, their `agreement`, and `instead`, the
        most common wrong prediction. `compare_features` adds the distances to the reference. If an
        image is not finite, the only other number is `num_not_finite`.
        """
        judges, seed = self.judges, self.judges.seed
        numbers: dict[str, Any] = {"num_images": self.num_images}
        if self.num_not_finite:
            return numbers | {"num_not_finite": self.num_not_finite}
        if self.logits is not None:
            numbers["classifier_score"] = probability_score(self.logits, seed=seed)
        if self.logits is not None and self.labels is not None:
            predictions = self.logits.argmax(1)
            hits = predictions == self.labels
            numbers["agreement"] = hits.double().mean().item()
            numbers["agreement_interval"] = share_interval(hits)
            if judges.class_names:
                numbers["by_class"] = _by_class(self.labels, predictions, judges.class_names)
        if self.features is not None and reference is not None and not reference.num_not_finite:
            assert judges.features is not None
            features = self.features_on_device(), reference.features_on_device()
            paired = reference is self.originals
            numbers |= compare_features(*features, judges.features, paired=paired, seed=seed)
        return numbers

    def features_on_device(self) -> Tensor:
        """Returns the features on the device of the judges."""
        assert self.features is not None
        return self.features.to(self.judges.device)


def compare_features(
    features: Tensor,
    reference: Tensor,
    network: FeatureNetwork,
    *,
    paired: bool,
    seed: int | None = 0,
) -> dict[str, Any]:
    """Returns the distances between features `(n f)` and a reference `(m f)`, and their diversity.

    The names are `fid`, `kid` and `inception_score` for Inception, and `frechet_distance` and
    `kernel_distance` for any other network. Sets of 4 to 5000 images get 95% intervals. `paired`
    says whether row i of both belongs to the same image, see `kernel_distance`.
    """
    frechet, kernel = "frechet_distance", "kernel_distance"
    if network.is_inception:
        frechet, kernel = "fid", "kid"
    means, covariances = zip(*map(feature_statistics, (features, reference)), strict=True)
    distance = frechet_distance(*means, *covariances).item()
    interval = frechet_interval(distance, features, reference, paired=paired, seed=seed)
    numbers: dict[str, Any] = {frechet: distance, f"{frechet}_interval": interval}
    kernels = kernel_distance(features, reference, paired=paired, seed=seed)
    if kernels is not None:
        numbers |= {
            kernel: kernels.distance,
            f"{kernel}_deviation": kernels.deviation,
            f"{kernel}_interval": kernels.interval,
        }
    if network.is_inception:
        numbers["inception_score"] = probability_score(network.logits(features), seed=seed)
    return numbers | fidelity_and_diversity(features, reference)


def probability_score(logits: Tensor, *, num_splits: int = 10, seed: int | None = 0) -> float:
    """Returns the mean over splits of exp E KL(p(y|x) ‖ p(y)), from logits `(n k)`; in [1, k].

    Salimans et al. 2016, "Improved Techniques for Training GANs". Call it the Inception Score only
    if the logits come from Inception. With another classifier it measures how sure the predictions
    are and how evenly they cover the classes. torch-fidelity has the same formula without a seed of
    the splits, and is an optional dependency.
    """
    order = np.random.default_rng(seed).permutation(len(logits))
    log_probabilities = logits[torch.from_numpy(order)].double().log_softmax(1)
    splits = log_probabilities.tensor_split(min(num_splits, len(logits)))
    return float(np.mean(list(map(split_score, splits))))


def split_score(log_probabilities: Tensor) -> float:
    """Returns exp E KL(p(y|x) ‖ p(y)) of one split, from log p(y|x) `(n k)`."""
    marginal = log_probabilities.exp().mean(0).log()
    divergence = (log_probabilities.exp() * (log_probabilities - marginal)).sum(1)
    return divergence.mean().exp().item()


def as_eight_bit(images: Tensor) -> Tensor:
    """Rounds images in [-1, 1] to the 256 levels of a file."""
    return ((images.float().clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def gather_rows(batches: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Joins tensors with one row per image; the first process gets the rows of all, in order."""
    batches = gather_shares(batches)
    names = batches[0] if batches else ()
    return {name: torch.cat([batch[name] for batch in batches]) for name in names}


def save_rows(path: Path, rows: dict[str, Tensor]) -> None:
    """Writes tensors as safetensors, and the directory of the file if it does not exist."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, "wb") as file:
            file.write(save(rows))


def in_proportion(labels: Sequence[int | None], count: int, seed: int | None) -> list[int]:
    """Chooses `count` images, each class as often as its share of `labels`; sorted by class.

    The images of a class are chosen at random, and repeat if there are fewer than `count`. Images
    without classes have the label None. Returns the numbers of the images.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    classes = np.array([-1 if label is None else label for label in labels])
    order = order[np.argsort(classes[order], kind="stable")]
    positions = (np.arange(count) + 0.5) * len(order) / count
    return order[positions.astype(np.int64)].tolist()


def _digests(pixels: np.ndarray) -> Tensor:
    """Returns the SHA-256 of each image of uint8 `(b H W c)`, as rows of bytes."""
    digests = [hashlib.sha256(repr(x.shape).encode() + x.tobytes()).digest() for x in pixels]
    return torch.from_numpy(np.array(list(map(list, digests)), np.uint8))


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
