"""A set of images as a normal distribution of a network's features."""

from typing import Self

import torch
from torch import nn

from taming.evaluation.frechet import frechet_distance, moments

__all__ = ["FeatureStatistics"]


class FeatureStatistics:
    """Mean and covariance of the features of a set of images, to compare several sets.

    `FrechetDistance` is for images that come in pairs; this is for sets of any number. What it says
    of the number of images and of the network's name holds here too. Sums are kept in float64, so
    that memory does not grow with the number of images.

    Args:
        features: module from images `(b c H W)` in [-1, 1] to `(b f)`, with `num_features`, its f
            (see `FeatureExtractor`).
        device: of the sums: the module's.

    Attributes:
        num_images: images so far.
    """

    def __init__(self, features: nn.Module, device: torch.device | str = "cpu") -> None:
        num_features = features.num_features
        assert isinstance(num_features, int)
        self.num_images = 0
        self._features = features
        self._sum = torch.zeros(num_features, dtype=torch.float64, device=device)
        self._products = self._sum.new_zeros(num_features, num_features)

    @torch.no_grad()
    def update(self, images: torch.Tensor) -> None:
        """Adds `(b c H W)` of float, clamped to [-1, 1]."""
        features = self._features(images.clamp(-1, 1)).double()  # (b f)
        self._sum += features.sum(0)
        self._products += features.T @ features
        self.num_images += len(images)

    def distance(self, other: Self) -> float:
        """The Fréchet distance of the two sets, 0 or more; NaN if either holds no image."""
        if not self.num_images or not other.num_images:
            return float("nan")
        both = (moments(s._sum, s._products, s.num_images) for s in (self, other))
        means, covariances = zip(*both, strict=True)
        return frechet_distance(*means, *covariances).item()
