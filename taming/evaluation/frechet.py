"""Fréchet distance between the features of images and of their reconstructions."""

import torch
from torch import nn
from torchmetrics import Metric

__all__ = ["FrechetDistance", "frechet_distance", "moments"]


class FrechetDistance(Metric):
    """How far apart two sets of images are, as normal distributions of a network's features.

    Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule", eq. 6. This is FID only if
    the features are those of Inception with the FID weights; with any other network name the
    network beside the number. It falls with the number of images, most so where there are fewer
    than features: compare only what was measured on equally many images.

    Sums of features and of their products are kept in float64, so memory does not grow with the
    number of images, and ranks add up.

    Args:
        features: module from images `(b c H W)` in [-1, 1] to `(b f)`, with `num_features`, its f
            (see `FeatureExtractor`).
    """

    names = ("frechet_distance",)  # that `compute` gives
    higher_is_better = False
    full_state_update = False

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features
        num_features = features.num_features
        assert isinstance(num_features, int)
        self.image_sum: torch.Tensor
        self.image_products: torch.Tensor
        self.reconstruction_sum: torch.Tensor
        self.reconstruction_products: torch.Tensor
        self.num_images: torch.Tensor
        for name, shape in (
            ("image_sum", (num_features,)),
            ("image_products", (num_features, num_features)),
            ("reconstruction_sum", (num_features,)),
            ("reconstruction_products", (num_features, num_features)),
            ("num_images", ()),
        ):
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, reconstructions: torch.Tensor, images: torch.Tensor) -> None:
        """Adds two `(b c H W)` of float; the reconstructions are clamped to [-1, 1]."""
        features = self.features(images).double()
        self.image_sum += features.sum(0)
        self.image_products += features.T @ features
        features = self.features(reconstructions.clamp(-1, 1)).double()
        self.reconstruction_sum += features.sum(0)
        self.reconstruction_products += features.T @ features
        self.num_images += len(images)

    def compute(self) -> dict[str, torch.Tensor]:
        """`frechet_distance`, 0 or more."""
        num_images = int(self.num_images)
        first = moments(self.image_sum, self.image_products, num_images)
        second = moments(self.reconstruction_sum, self.reconstruction_products, num_images)
        means, covariances = zip(first, second, strict=True)
        return {"frechet_distance": frechet_distance(*means, *covariances)}


def moments(
    total: torch.Tensor, products: torch.Tensor, num_images: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean `(f,)` and covariance `(f f)` of features; of a single image the covariance is zero.

    Args:
        total: `(f,)` float64, the sum of the features.
        products: `(f f)` likewise, of their products.
        num_images: how many images they are of, at least 1.
    """
    mean = total / num_images
    covariance = products - num_images * torch.outer(mean, mean)
    return mean, covariance / max(1, num_images - 1)


def frechet_distance(
    first_mean: torch.Tensor,
    second_mean: torch.Tensor,
    first_covariance: torch.Tensor,
    second_covariance: torch.Tensor,
) -> torch.Tensor:
    """‖μ₁ − μ₂‖² + Tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½), of `(f,)` and `(f f)` float64, a scalar.

    With Σ = L Lᵀ, the eigenvalues of Σ₁Σ₂ are the squared singular values of L₁ᵀL₂, whose sum is
    thus the trace of the root. No complex numbers appear, and a singular Σ does no harm.
    """
    root_trace = torch.linalg.svdvals(_factor(first_covariance).T @ _factor(second_covariance))
    distance = (
        (first_mean - second_mean).square().sum()
        + first_covariance.trace()
        + second_covariance.trace()
        - 2 * root_trace.sum()
    )
    return distance.clamp(min=0)


def _factor(covariance: torch.Tensor) -> torch.Tensor:
    """L with L Lᵀ = Σ, by the eigenvalues of Σ; those within rounding of zero are taken as zero."""
    values, vectors = torch.linalg.eigh(covariance)
    rounding = values.max().clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    return vectors * torch.where(values > rounding, values, 0).sqrt()
