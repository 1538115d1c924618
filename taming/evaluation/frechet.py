"""Fréchet distance between sets of images, as normal distributions of a network's features."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchmetrics import Metric

__all__ = ["FrechetDistance", "feature_statistics", "frechet_distance", "frechet_spread"]

BLOCK = 4096  # features in float64 at a time


class FrechetDistance(Metric):
    """The Fréchet distance of reconstructions to their images, by the features of a network.

    Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule", eq. 6. This is FID only if
    the features are those of Inception with the FID weights; with any other network name the
    network beside the number. It falls with the number of images, most so where there are fewer
    than features: compare only what was measured on equally many images.

    Sums of features and of their products are kept in float64, so memory does not grow with the
    number of images, and ranks add up. `features` is a module from images `(b c H W)` in [-1, 1] to
    `(b f)`, with `num_features`, its f (see `FeatureExtractor`).
    """

    names = ("frechet_distance",)  # of the numbers that `compute` returns
    higher_is_better = False
    full_state_update = False

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.sums: Tensor  # of reconstructions, and of images
        self.products: Tensor
        self.num_images: Tensor
        f: int = features.num_features  # type: ignore[assignment]
        for name, shape in {"sums": (2, f), "products": (2, f, f), "num_images": ()}.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, reconstructions: Tensor, images: Tensor) -> None:
        """Adds a batch; both are `(b c H W)` of float, and are clamped to [-1, 1]."""
        both = [self.features(x.clamp(-1, 1)) for x in (reconstructions, images)]
        features = torch.stack(both).double()  # (2 b f)
        self.sums += features.sum(1)
        self.products += features.mT @ features
        self.num_images += len(images)

    def compute(self) -> dict[str, Tensor]:
        """Returns `frechet_distance`, 0 or more; of single images the covariance is zero."""
        means = self.sums / self.num_images  # (2 f)
        if means.isnan().any():
            return {"frechet_distance": means.new_tensor(torch.nan)}
        products = self.products - self.num_images * means[:, :, None] * means[:, None]
        covariances = products / (self.num_images - 1).clamp(min=1)
        return {"frechet_distance": frechet_distance(*means, *covariances)}


def feature_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean `(f,)` and covariance `(f f)` of features `(n f)`, in float64."""
    n, f = features.shape
    mean = features.mean(0, dtype=torch.float64)
    products = mean.new_zeros(f, f)
    for block in features.split(BLOCK):
        centred = block.double() - mean
        products += centred.T @ centred
    return mean, products / max(n - 1, 1)


def frechet_distance(
    first_mean: Tensor, second_mean: Tensor, first_covariance: Tensor, second_covariance: Tensor
) -> Tensor:
    """Computes ‖μ₁ − μ₂‖² + Tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½), of `(f,)` and `(f f)` float64, a scalar.

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


def frechet_spread(features: Tensor, reference: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns a function from rows of the features `(n f)` to their distance to the reference's.

    It is `frechet_distance` of resamples, made cheap: the reference is factored once, and the
    singular values are roots of the eigenvalues of the smaller product of the factors.
    """
    mean, covariance = feature_statistics(reference)
    features = features.double()
    projected = features @ _factor(covariance)  # (n f): a resample picks rows of it

    def distance(rows: Tensor) -> Tensor:
        some = features[rows]
        own_mean, own_variance = some.mean(0), some.var(0).sum()
        product = projected[rows] - projected[rows].mean(0)
        gram = product @ product.T if len(product) < product.shape[1] else product.T @ product
        roots = torch.linalg.eigvalsh(gram / (len(rows) - 1)).clamp(min=0).sqrt()
        return (
            (mean - own_mean).square().sum() + covariance.trace() + own_variance - 2 * roots.sum()
        )

    return distance


def _factor(covariance: Tensor) -> Tensor:
    """Returns L with L Lᵀ = Σ; eigenvalues of Σ within rounding of zero are taken as zero."""
    values, vectors = torch.linalg.eigh(covariance)
    rounding = values.max().clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    return vectors * torch.where(values > rounding, values, 0).sqrt()
