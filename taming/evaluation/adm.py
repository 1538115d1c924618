"""Inception Score, precision and recall as ADM's evaluator defines them.

Dhariwal and Nichol 2021, "Diffusion Models Beat GANs on Image Synthesis", and
`evaluations/evaluator.py` of openai/guided-diffusion. Most papers on ImageNet print these numbers.
They differ from the numbers to the validation images: precision and recall use 3 neighbours instead
of 5, and the Inception Score has splits of 5,000 images instead of 10 splits.

FID and sFID are `frechet_distance` of the features and of the spatial features.
"""

import numpy as np
import torch
from torch import Tensor

from taming.evaluation.judges import split_score
from taming.evaluation.neighbours import distance_blocks

__all__ = ["adm_inception_score", "adm_precision_and_recall"]

SPLIT_SIZE = 5000
NUM_NEIGHBOURS = 3  # Kynkäänniemi et al. 2019


def adm_inception_score(logits: Tensor) -> float:
    """Returns the mean Inception Score of splits of 5,000 images, in their order.

    All splits count equally, also a smaller last one. If images are sorted by class, a split has
    few classes and a low score.

    Args:
        logits: of Inception without the bias of its last layer, `(n k)`.
    """
    log_probabilities = logits.double().log_softmax(1)
    return float(np.mean(list(map(split_score, log_probabilities.split(SPLIT_SIZE)))))


def adm_precision_and_recall(samples: Tensor, reference: Tensor) -> tuple[float, float]:
    """Returns precision and recall of features `(n f)` to the features of a reference `(m f)`.

    An image is in the manifold of a set if its distance to an image of the set is at most that
    image's distance to its third nearest neighbour within the set. Precision is the share of
    samples in the manifold of the reference, recall the reverse. ADM's evaluator rounds squared
    distances to half precision, and this function does not.
    """
    centre = reference.mean(0)  # distances lose the fewest digits around zero
    samples, reference = samples - centre, reference - centre
    sample_radii, radii = _radii(samples), _radii(reference)
    precise = torch.zeros(len(samples), dtype=torch.bool, device=samples.device)
    recalled = torch.zeros(len(reference), dtype=torch.bool, device=samples.device)
    for rows, distances in distance_blocks(samples, reference):
        precise[rows] = (distances <= radii).any(1)
        recalled |= (distances <= sample_radii[rows, None]).any(0)
    return precise.double().mean().item(), recalled.double().mean().item()


def _radii(features: Tensor) -> Tensor:
    """Returns the distance of each row to its third nearest other row."""
    count = min(NUM_NEIGHBOURS + 1, len(features))  # the first is the row itself
    blocks = distance_blocks(features, features)
    return torch.cat([distances.kthvalue(count).values for _, distances in blocks])
