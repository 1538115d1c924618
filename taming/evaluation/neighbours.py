"""Numbers from nearest neighbours: precision, recall, density, coverage, and copies.

Distances are computed in blocks of rows, so memory grows with the number of images and not with its
square. torch-fidelity has only precision and recall, and prdc holds all distances in memory.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from taming.evaluation.intervals import share_interval

__all__ = ["distance_blocks", "fidelity_and_diversity", "memorisation", "nearest"]

NUM_NEIGHBOURS = 5  # Naeem et al. 2020
BLOCK = 1024  # rows of distances at once
CLOSE = 0.05  # samples closer than this quantile of the held-out images' distances count as close


def fidelity_and_diversity(samples: Tensor, reference: Tensor) -> dict[str, Any]:
    """Returns precision, recall, density, coverage and the mean distances within both sets.

    Precision is the share of samples in the reference's manifold, recall the reverse (Kynkäänniemi
    et al. 2019, "Improved Precision and Recall Metric for Assessing Generative Models"). Density
    and coverage are variants that outliers disturb less (Naeem et al. 2020, "Reliable Fidelity and
    Diversity Metrics for Generative Models"). All use 5 neighbours. The result is empty if a set
    has no more images than that.
    """
    k = NUM_NEIGHBOURS
    if min(len(samples), len(reference)) <= k:
        return {}
    centre = reference.mean(0)  # distances lose the fewest digits around zero
    samples, reference = samples - centre, reference - centre
    sample_radii, sample_spread = _radii_and_spread(samples)
    radii, spread = _radii_and_spread(reference)
    num_manifolds = torch.empty(len(samples), dtype=torch.int64, device=samples.device)
    recalled = torch.zeros(len(reference), dtype=torch.bool, device=samples.device)
    closest = torch.full_like(radii, torch.inf)
    for rows, distances in distance_blocks(samples, reference):
        num_manifolds[rows] = (distances < radii).sum(1)
        recalled |= (distances < sample_radii[rows, None]).any(0)
        closest = torch.minimum(closest, distances.amin(0))
    return {
        "precision": (num_manifolds > 0).double().mean().item(),
        "recall": recalled.double().mean().item(),
        "density": num_manifolds.double().mean().item() / k,
        "coverage": (closest < radii).double().mean().item(),
        "diversity": sample_spread,
        "diversity_of_reference": spread,
    }


def memorisation(samples: Tensor, held_out: Tensor, training: Tensor) -> dict[str, Any]:
    """Compares the distances of samples and of held-out images to their nearest training images.

    A generator that copies its training images comes closer to them than new images of the same
    kind do. Returns the median of both distances, and the share of samples that are closer than all
    but 5% of the held-out images. New images have a share of 5%, copies a much larger one.
    """
    sample_distances, _ = nearest(samples, training)
    held_out_distances, _ = nearest(held_out, training)
    close = sample_distances < held_out_distances.double().quantile(CLOSE)
    return {
        "training_distance": sample_distances.median().item(),
        "training_distance_of_held_out": held_out_distances.median().item(),
        "close_to_training": close.double().mean().item(),
        "close_to_training_interval": share_interval(close),
    }


def nearest(features: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distance of each row to its nearest row of `reference`, and that row's number."""
    centre = reference.mean(0)
    minima = [block.min(1) for _, block in distance_blocks(features - centre, reference - centre)]
    return torch.cat([x.values for x in minima]), torch.cat([x.indices for x in minima])


def _radii_and_spread(features: Tensor) -> tuple[Tensor, float]:
    """Returns the distances to the k-th nearest other image, and the mean of all distances."""
    radii = features.new_empty(len(features))
    total = 0.0
    for rows, distances in distance_blocks(features, features):
        numbers = torch.arange(rows.start, rows.stop, device=features.device)
        distances[torch.arange(len(numbers)), numbers] = 0  # removes rounding
        total += distances.sum(dtype=torch.float64).item()
        radii[rows] = distances.kthvalue(NUM_NEIGHBOURS + 1).values  # the first is the image itself
    return radii, total / (len(features) * (len(features) - 1))


def distance_blocks(features: Tensor, reference: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yields blocks of rows with their Euclidean distances to all of `reference`, `(b n)`."""
    for start in range(0, len(features), BLOCK):
        rows = slice(start, min(start + BLOCK, len(features)))
        yield rows, torch.cdist(features[rows], reference)
