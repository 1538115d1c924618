"""Numbers from distances between features: fidelity, diversity, memorisation.

Distances are computed block by block, so memory grows with the number of images and not with its
square.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["fidelity_and_diversity", "memorisation", "nearest"]

NUM_NEIGHBOURS = 5  # Naeem et al. 2020
BLOCK = 1024  # rows of distances at a time
CLOSE = 0.05  # quantile of the held-out images' distances below which a sample is called close


def fidelity_and_diversity(samples: Tensor, reference: Tensor) -> dict[str, Any]:
    """Returns precision, recall, density, coverage and the mean distances within both sets.

    Precision and recall are the shares of samples in the reference's manifold and the reverse
    (Kynkäänniemi et al. 2019, "Improved Precision and Recall Metric for Assessing Generative
    Models"), density and coverage their variants that an outlier disturbs less (Naeem et al. 2020,
    "Reliable Fidelity and Diversity Metrics for Generative Models"), of 5 neighbours each. Empty if
    a set has no more images than that.
    """
    k = NUM_NEIGHBOURS
    if min(len(samples), len(reference)) <= k:
        return {}
    centre = reference.mean(0)  # rounding is smallest around zero
    samples, reference = samples - centre, reference - centre
    sample_radii, sample_spread = _radii_and_spread(samples)
    radii, spread = _radii_and_spread(reference)
    within = torch.empty(len(samples), dtype=torch.int64, device=samples.device)
    recalled = torch.zeros(len(reference), dtype=torch.bool, device=samples.device)
    closest = torch.full_like(radii, torch.inf)
    for rows, distances in _blocks(samples, reference):
        within[rows] = (distances < radii).sum(1)
        recalled |= (distances < sample_radii[rows, None]).any(0)
        closest = torch.minimum(closest, distances.amin(0))
    return {
        "precision": (within > 0).double().mean().item(),
        "recall": recalled.double().mean().item(),
        "density": within.double().mean().item() / k,
        "coverage": (closest < radii).double().mean().item(),
        "diversity": sample_spread,
        "diversity_of_reference": spread,
    }


def memorisation(samples: Tensor, held_out: Tensor, training: Tensor) -> dict[str, float]:
    """Compares the samples' distances to their nearest training images with held-out images'.

    A generator that copies its training images comes closer to them than new images of the same
    kind do. Returns the median distance of both, and the share of samples that are closer than all
    but 5% of the held-out images: 5% is what new images have, much more are copies.
    """
    of_samples, _ = nearest(samples, training)
    of_held_out, _ = nearest(held_out, training)
    limit = of_held_out.double().quantile(CLOSE)
    return {
        "training_distance": of_samples.median().item(),
        "training_distance_of_held_out": of_held_out.median().item(),
        "close_to_training": (of_samples < limit).double().mean().item(),
    }


def nearest(features: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distance of each row to its nearest row of `others`, and that one's number."""
    centre = others.mean(0)
    found = [distances.min(1) for _, distances in _blocks(features - centre, others - centre)]
    return torch.cat([x.values for x in found]), torch.cat([x.indices for x in found])


def _radii_and_spread(features: Tensor) -> tuple[Tensor, float]:
    """Returns the distances to the k-th nearest other image, and the mean of all distances."""
    radii = features.new_empty(len(features))
    total = 0.0
    for rows, distances in _blocks(features, features):
        positions = torch.arange(rows.start, rows.stop, device=features.device)
        distances[torch.arange(len(positions)), positions] = 0  # without rounding
        total += distances.sum(dtype=torch.float64).item()
        radii[rows] = distances.kthvalue(NUM_NEIGHBOURS + 1).values  # itself is the first
    return radii, total / (len(features) * (len(features) - 1))


def _blocks(features: Tensor, others: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yields the Euclidean distances of some rows to all others, `(b n)`."""
    for start in range(0, len(features), BLOCK):
        rows = slice(start, min(start + BLOCK, len(features)))
        yield rows, torch.cdist(features[rows], others)
