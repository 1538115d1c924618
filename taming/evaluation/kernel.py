"""Kernel distance and Inception Score."""

import numpy as np
import torch
from torch import Tensor
from torchmetrics.image.kid import poly_mmd

__all__ = ["kernel_distance", "probability_score"]


def kernel_distance(
    samples: Tensor,
    reference: Tensor,
    *,
    num_subsets: int = 100,
    subset_size: int = 1000,
    seed: int | None = 0,
) -> tuple[float, float]:
    """Returns the squared maximum mean discrepancy of features, and its deviation over subsets.

    Bińkowski et al. 2018, "Demystifying MMD GANs": the unbiased estimate with the kernel
    (xᵀy / f + 1)³, averaged over random subsets, of all images where there are fewer. It is KID
    only if the features are Inception's.
    """
    size = min(subset_size, len(samples), len(reference))
    if size < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(num_subsets):
        some, others = (
            # sorted: of equally many images each subset is the whole, in one order
            features[torch.from_numpy(np.sort(rng.choice(len(features), size, replace=False)))]
            for features in (samples, reference)
        )
        values.append(poly_mmd(others.double(), some.double()).item())
        if size == len(samples) == len(reference):
            break
    return float(np.mean(values)), float(np.std(values))


def probability_score(logits: Tensor, *, num_splits: int = 10, seed: int | None = 0) -> float:
    """Returns the mean over splits of exp E KL(p(y|x) ‖ p(y)), from logits `(n k)`.

    Salimans et al. 2016, "Improved Techniques for Training GANs". It is the Inception Score only if
    the logits are Inception's; of another classifier it says how surely and how evenly its classes
    are seen. In [1, k].
    """
    order = np.random.default_rng(seed).permutation(len(logits))
    logs = logits[torch.from_numpy(order)].double().log_softmax(1)
    scores = []
    for part in logs.tensor_split(min(num_splits, len(logs))):
        marginal = part.exp().mean(0).log()
        scores.append((part.exp() * (part - marginal)).sum(1).mean().exp().item())
    return float(np.mean(scores))
