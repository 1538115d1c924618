"""The formulas of ADM's evaluator in NumPy and SciPy, written from its description of each number.

Nothing here imports this project. `evaluations/evaluator.py` of openai/guided-diffusion needs
TensorFlow 1 and its graph of Inception. The formulas below start from features.
"""

import numpy as np
import scipy.linalg

__all__ = ["frechet", "half_squared_distances", "inception_score", "precision_and_recall",
    "squared_distances"]  # fmt: skip


def frechet(first: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """Returns the Fréchet distance of features `(n f)` to statistics, by a matrix root."""
    first_mean, first_covariance = first.mean(0), np.cov(first, rowvar=False)
    root = scipy.linalg.sqrtm(first_covariance @ covariance)
    difference = first_mean - mean
    trace = np.trace(first_covariance) + np.trace(covariance) - 2 * np.trace(root.real)
    return float(difference @ difference + trace)


def inception_score(logits: np.ndarray, split_size: int = 5000) -> float:
    """Returns the mean score of consecutive splits, from logits without bias `(n k)`."""
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    scores = []
    for start in range(0, len(probabilities), split_size):
        part = probabilities[start : start + split_size]
        divergence = part * (np.log(part) - np.log(part.mean(0, keepdims=True)))
        scores.append(np.exp(divergence.sum(1).mean()))
    return float(np.mean(scores))


def squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns squared Euclidean distances `(n m)`."""
    norms = (first**2).sum(1)[:, None] + (second**2).sum(1)
    return np.maximum(norms - 2 * first @ second.T, 0)


def half_squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns squared distances whose terms are rounded to half precision, as on ADM's GPU."""
    first, second = (x.astype(np.float16).astype(np.float32) for x in (first, second))
    norms = [(x * x).astype(np.float16).astype(np.float32).sum(1) for x in (first, second)]
    rows, columns = (x.astype(np.float16) for x in norms)
    products = (first @ second.T).astype(np.float16)
    distances = (rows[:, None] - 2 * products) + columns
    return np.maximum(distances, 0).astype(np.float32)


def precision_and_recall(
    reference: np.ndarray, samples: np.ndarray, *, half: bool = False, neighbours: int = 3
) -> tuple[float, float]:
    """Returns the shares of samples and of reference rows in the other set's manifold."""
    distances = half_squared_distances if half else squared_distances
    radii, sample_radii = (
        np.partition(distances(x, x), neighbours, axis=1)[:, neighbours]
        for x in (reference, samples)
    )
    between = distances(reference, samples)
    precise = (between <= radii[:, None]).any(0)
    recalled = (between <= sample_radii).any(1)
    return float(precise.mean()), float(recalled.mean())
