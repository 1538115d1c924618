"""Fréchet and kernel distances between two sets of images, and 95% intervals of numbers.

torchmetrics computes the kernel. Its FrechetInceptionDistance agrees with ours within float32, but
it refuses single images, fails on NaN, and has no public function of features.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.image.kid import poly_mmd

__all__ = ["FEW_IMAGES", "MAX_IMAGES", "FrechetDistance", "feature_statistics", "frechet_distance",
    "frechet_interval", "frechet_of_rows", "kernel_distance", "mean_interval"]  # fmt: skip

BLOCK = 4096  # rows of features that are converted to float64 at once
FEW_IMAGES = 500  # with fewer images an evaluation warns that its numbers are rough
MAX_IMAGES = 5000  # larger sets get no intervals
NUM_RESAMPLES = 100  # of the bootstrap
STANDARD_DEVIATIONS = 1.96  # they cover 95% of a normal distribution on both sides

Interval = tuple[float, float]


class FrechetDistance(Metric):
    """The Fréchet distance of reconstructions to their images, by the features of a network.

    Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule", eq. 6. Call it FID only if
    the features come from Inception with the FID weights. With any other network, print its name
    next to the number. The distance falls as the number of images grows, so compare only distances
    of equally many images.

    The metric adds up features and their products in float64. Its memory does not depend on the
    number of images, and the sums add up over processes.

    Args:
        features: a module with `num_features` f that maps images `(b c H W)` in [-1, 1] to
            `(b f)`, see `FeatureExtractor`.
    """

    names = ("frechet_distance",)  # keys of `compute`
    higher_is_better = False
    full_state_update = False

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.sums: Tensor  # row 0: reconstructions, row 1: images
        self.products: Tensor
        self.num_images: Tensor
        f: int = features.num_features  # type: ignore[assignment]
        for name, shape in {"sums": (2, f), "products": (2, f, f), "num_images": ()}.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, reconstructions: Tensor, images: Tensor) -> None:
        """Adds a batch; both are float `(b c H W)` and are clamped to [-1, 1]."""
        both = [self.features(x.clamp(-1, 1)) for x in (reconstructions, images)]
        features = torch.stack(both).double()  # (2 b f)
        self.sums += features.sum(1)
        self.products += features.mT @ features
        self.num_images += len(images)

    def compute(self) -> dict[str, Tensor]:
        """Returns `frechet_distance`, 0 or more. The covariance of a single image is zero."""
        means = self.sums / self.num_images  # (2 f)
        if means.isnan().any():
            return {"frechet_distance": means.new_tensor(torch.nan)}
        products = self.products - self.num_images * means[:, :, None] * means[:, None]
        covariances = products / (self.num_images - 1).clamp(min=1)
        return {"frechet_distance": frechet_distance(*means, *covariances)}


def feature_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean `(f,)` and the covariance `(f f)` of features `(n f)`, in float64."""
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
    """Computes ‖μ₁ − μ₂‖² + Tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½) from float64 `(f,)` and `(f f)`.

    With Σ = L Lᵀ, the eigenvalues of Σ₁Σ₂ are the squared singular values of L₁ᵀL₂. The trace of
    the root is therefore the sum of the singular values. This needs no complex numbers and works
    for singular Σ.
    """
    root_trace = torch.linalg.svdvals(_factor(first_covariance).T @ _factor(second_covariance))
    distance = (
        (first_mean - second_mean).square().sum()
        + first_covariance.trace()
        + second_covariance.trace()
        - 2 * root_trace.sum()
    )
    return distance.clamp(min=0)


def frechet_of_rows(features: Tensor, reference: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns a function that maps rows of `features` `(n f)` to their distance to `reference`.

    It equals `frechet_distance` and is fast enough for a bootstrap. The reference is factored once,
    and the singular values are the roots of the eigenvalues of the smaller Gram matrix.
    """
    mean, covariance = feature_statistics(reference)
    features = features.double()
    projected = features @ _factor(covariance)  # (n f)

    def distance(rows: Tensor) -> Tensor:
        resample = features[rows]
        resample_mean, resample_variance = resample.mean(0), resample.var(0).sum()
        product = projected[rows] - projected[rows].mean(0)
        gram = product @ product.T if len(product) < product.shape[1] else product.T @ product
        roots = torch.linalg.eigvalsh(gram / (len(rows) - 1)).clamp(min=0).sqrt()
        means = (mean - resample_mean).square().sum()
        return means + covariance.trace() + resample_variance - 2 * roots.sum()

    return distance


def _factor(covariance: Tensor) -> Tensor:
    """Returns L with L Lᵀ = Σ; eigenvalues of Σ within rounding of zero become zero."""
    values, vectors = torch.linalg.eigh(covariance)
    rounding = values.max().clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    return vectors * torch.where(values > rounding, values, 0).sqrt()


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
    (xᵀy / f + 1)³, averaged over random subsets of at most `subset_size` images. Call it KID only
    if the features come from Inception. Both are NaN for fewer than two images.
    """
    size = min(subset_size, len(samples), len(reference))
    if size < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(num_subsets):
        # Sorted, so that a subset of all images keeps their order and one subset is enough.
        sample_subset, reference_subset = (
            features[torch.from_numpy(np.sort(rng.choice(len(features), size, replace=False)))]
            for features in (samples, reference)
        )
        values.append(poly_mmd(reference_subset.double(), sample_subset.double()).item())
        if size == len(samples) == len(reference):
            break
    return float(np.mean(values)), float(np.std(values))


def mean_interval(values: Tensor, seed: int | None = 0) -> Interval:
    """Returns the interval of the mean of `values`, one number per image, `(n,)`."""
    values = values.double()
    return _interval(values.mean().item(), len(values), seed, lambda rows: values[rows].mean())


def frechet_interval(
    distance: float, samples: Tensor, reference: Tensor, seed: int | None = 0
) -> Interval:
    """Returns the interval of the Fréchet distance of features `(n f)` to a fixed reference."""
    return _interval(distance, len(samples), seed, frechet_of_rows(samples, reference))


def _interval(
    value: float, count: int, seed: int | None, statistic: Callable[[Tensor], Tensor]
) -> Interval:
    # The resamples give the width and `value` the centre. A resample holds fewer different images,
    # and a Fréchet distance grows with fewer images, so the mean of the resamples is too high.
    rng = np.random.default_rng(seed)
    resampled = [
        statistic(torch.from_numpy(rng.integers(0, count, count))).item()
        for _ in range(NUM_RESAMPLES)
    ]
    half_width = STANDARD_DEVIATIONS * float(np.std(resampled, ddof=1))
    return value - half_width, value + half_width
