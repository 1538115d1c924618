"""Fréchet and kernel distances between two sets of images, with 95% intervals.

The intervals answer how much a distance would change with other images of the same kind. Samples
are compared with a fixed reference, because the distances of two models are comparable only if they
have the same reference. Pairs of an image and its reconstruction are exchanged together.

torchmetrics computes the kernel. Its FrechetInceptionDistance agrees with ours within float32, but
it refuses single images, fails on NaN, and has no public function of features.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.image.kid import poly_kernel

from taming.evaluation.intervals import Interval, halves_deviation, normal_interval

__all__ = ["FEW_IMAGES", "FrechetDistance", "KernelDistance", "feature_statistics",
    "frechet_distance", "frechet_interval", "frechet_of_rows", "kernel_distance"]  # fmt: skip

BLOCK = 4096  # rows of features that are converted to float64 at once
KERNEL_BLOCK = 1024  # rows of a kernel at once
FEW_IMAGES = 500  # with fewer images an evaluation warns that its numbers are rough
MIN_IMAGES = 4  # smaller sets get no intervals of distances; each half needs a covariance
MAX_IMAGES = 5000  # larger sets get none either, because they would take minutes


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


def frechet_interval(
    distance: float, samples: Tensor, reference: Tensor, *, paired: bool, seed: int | None = 0
) -> Interval | None:
    """Returns the interval of the Fréchet distance between features `(n f)` and `(m f)`.

    `distance` is the centre, because the distance of fewer images is larger. The result is None for
    fewer than 4 images and for more than 5000.

    Args:
        distance: the Fréchet distance.
        samples: features of the samples, `(n f)`.
        reference: features of the reference, `(m f)`.
        paired: whether row i of both belongs to the same image; see `kernel_distance`.
        seed: of `halves_deviation`.
    """
    if not MIN_IMAGES <= len(samples) <= MAX_IMAGES:
        return None
    deviation = halves_deviation(frechet_of_rows(samples, reference, paired), len(samples), seed)
    low, high = normal_interval(distance, deviation)
    return max(low, 0.0), high


def frechet_of_rows(samples: Tensor, reference: Tensor, paired: bool) -> Callable[[Tensor], float]:
    """Returns a function that maps rows of the samples to their Fréchet distance.

    Rows of pairs are compared with the same rows of the reference, and other rows with the whole
    reference. The distance equals `frechet_distance` and is faster, because the singular values are
    roots of eigenvalues of the smaller Gram matrix.
    """
    samples = samples.double()
    if not paired:
        mean, covariance = feature_statistics(reference)
        projected, trace = samples @ _factor(covariance), covariance.trace()

    def distance(rows: Tensor) -> float:
        features, degrees = samples[rows], len(rows) - 1
        if paired:
            reference_mean, factor = _mean_and_factor(reference[rows].double())
            product = (features - features.mean(0)) @ factor
            reference_trace = factor.square().sum()
        else:
            reference_mean, reference_trace = mean, trace
            product = projected[rows] - projected[rows].mean(0)
        gram = product @ product.T if len(product) < product.shape[1] else product.T @ product
        root_trace = _roots(torch.linalg.eigvalsh(gram / degrees)).sum()
        traces = features.var(0).sum() + reference_trace
        means = (features.mean(0) - reference_mean).square().sum()
        return (means + traces - 2 * root_trace).item()

    return distance


def _mean_and_factor(features: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean of features `(n f)`, and L `(f min(n, f))` with the covariance L Lᵀ."""
    mean = features.mean(0)
    centred = features - mean
    if len(features) > features.shape[1]:
        centred = torch.linalg.qr(centred, mode="r").R  # RᵀR is the same product
    return mean, centred.T / (len(features) - 1) ** 0.5


def _factor(covariance: Tensor) -> Tensor:
    """Returns L with L Lᵀ = Σ; eigenvalues of Σ within rounding of zero become zero."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * _roots(values)


def _roots(values: Tensor) -> Tensor:
    """Returns the roots of the eigenvalues of a positive matrix, where rounding becomes zero."""
    rounding = values.max().clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    return torch.where(values > rounding, values, 0).sqrt()


class KernelDistance(NamedTuple):
    """A kernel distance and its uncertainty.

    Attributes:
        distance: the mean over subsets.
        deviation: standard deviation over subsets, which papers print next to KID. It tells how
            much a distance of that few images varies. None for one subset of all images.
        interval: the interval of the mean; None for fewer than 4 images and for more than 5000.
    """

    distance: float
    deviation: float | None
    interval: Interval | None


def kernel_distance(
    samples: Tensor,
    reference: Tensor,
    *,
    paired: bool,
    num_subsets: int = 100,
    subset_size: int = 1000,
    seed: int | None = 0,
) -> KernelDistance | None:
    """Returns the squared maximum mean discrepancy of features; None for fewer than two images.

    Bińkowski et al. 2018, "Demystifying MMD GANs": the unbiased estimate with the kernel
    (xᵀy / f + 1)³, averaged over random subsets of at most `subset_size` images. Call it KID only
    if the features come from Inception.

    Args:
        samples: features of the samples, `(n f)`.
        reference: features of the reference, `(m f)`.
        paired: whether row i of both belongs to the same image, as a reconstruction does. An image
            is more similar to its reconstruction than to other images, so the estimate is unbiased
            only if it compares different images. It draws the same subset of both.
        num_subsets: number of subsets; 1 if a subset has all images.
        subset_size: maximum number of images in a subset.
        seed: of the subsets.
    """
    size = min(subset_size, len(samples), len(reference))
    if size < 2:
        return None
    rng = np.random.default_rng(seed)
    if size == len(samples) == len(reference):
        num_subsets = 1

    def rows_of(features: Tensor) -> Tensor:
        return torch.from_numpy(np.sort(rng.choice(len(features), size, replace=False)))

    distances = []
    for _ in range(num_subsets):
        rows = rows_of(samples)
        reference_rows = rows if paired else rows_of(reference)
        pair = samples[rows].double(), reference[reference_rows].double()
        distances.append(_squared_discrepancy(*pair, paired))
    distance = float(np.mean(distances))
    deviation = float(np.std(distances)) if num_subsets > 1 else None
    if not MIN_IMAGES <= len(samples) <= MAX_IMAGES:
        return KernelDistance(distance, deviation, None)
    variance = _kernel_variance(samples.double(), reference, paired)
    if deviation is not None:  # the squared standard error of the mean over random subsets
        variance += deviation**2 / (num_subsets - 1)
    return KernelDistance(distance, deviation, normal_interval(distance, variance**0.5))


def _squared_discrepancy(first: Tensor, second: Tensor, paired: bool) -> float:
    """Averages k(x, x') + k(y, y') - 2 k(x, y) over different images; both are `(n f)`."""
    n = len(first)

    def mean_of_others(kernel: Tensor) -> float:
        return ((kernel.sum() - kernel.trace()) / (n * (n - 1))).item()

    within = sum(mean_of_others(poly_kernel(x, x)) for x in (first, second))
    between = poly_kernel(first, second)
    return within - 2 * (mean_of_others(between) if paired else between.mean().item())


def _kernel_variance(samples: Tensor, reference: Tensor, paired: bool) -> float:
    """Estimates the variance of the kernel distance of samples `(n f)`.

    The distance is a U-statistic, the mean of a function h of two different images, up to a
    constant. With a fixed reference, h(x, x') = k(x, x') - a(x) - a(x'), where a(x) is the mean of
    k(x, y) over the reference. For pairs, h = k(x, x') + k(y, y') - k(x, y') - k(x', y). Hoeffding
    1948, "A Class of Statistics with Asymptotically Normal Distribution", §5.
    """
    n = len(samples)
    if paired:
        reference = reference.double()
    else:
        similarity = samples.new_zeros(n)  # a
        for block in reference.split(KERNEL_BLOCK):
            similarity += poly_kernel(samples, block.double()).sum(1) / len(reference)
    row_means, mean_square = samples.new_empty(n), 0.0  # of h
    for start in range(0, n, KERNEL_BLOCK):
        rows = slice(start, start + KERNEL_BLOCK)
        x = samples[rows]
        h = poly_kernel(x, samples)  # (b n)
        if paired:
            y = reference[rows]
            h += poly_kernel(y, reference) - poly_kernel(x, reference) - poly_kernel(y, samples)
        else:
            h -= similarity[rows, None] + similarity
        h.diagonal(start).zero_()
        row_means[rows] = h.sum(1) / (n - 1)
        mean_square += h.square().sum().item() / (n * (n - 1))
    # Each pair of images varies, and so does each image. The row means vary with both.
    variance_of_pairs = 2 * (mean_square - row_means.mean().item() ** 2) / n**2
    variance_of_images = 4 * row_means.var().item() / n - 2 * variance_of_pairs
    return variance_of_pairs + max(variance_of_images, 0.0)
