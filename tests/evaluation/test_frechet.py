import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
import torchvision
from torch import nn
from torchvision.transforms import v2

from taming.evaluation import FeatureExtractor, FrechetDistance, frechet_distance


class RandomFeatures(nn.Module):
    """Six features of an image, correlated and not normal."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randn(3 * 8 * 8, 6, generator=generator) / 8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images.flatten(1).float() @ self.weight).relu() + 1


def sets(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Reconstructions and images that differ in mean and covariance."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, 3, 8, 8, generator=generator) * 2 - 1
    noise = torch.randn(count, 3, 8, 8, generator=generator)
    return (0.6 * images + 0.2 * noise + 0.1).clamp(-1, 1), images


def measured(reconstructions: torch.Tensor, images: torch.Tensor, size: int = 40) -> float:
    metric = FrechetDistance(RandomFeatures())
    for part in zip(reconstructions.split(size), images.split(size), strict=True):
        metric.update(*part)
    return metric.compute()["frechet_distance"].item()


def by_scipy(first: np.ndarray, second: np.ndarray) -> float:
    """The published formula, on features `(n f)` in float64."""
    covariances = [np.cov(features, rowvar=False) for features in (first, second)]
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1])
    means = first.mean(0) - second.mean(0)
    return float(
        means @ means + np.trace(covariances[0] + covariances[1] - 2 * np.asarray(root).real)
    )


def features_of(images: torch.Tensor) -> np.ndarray:
    return RandomFeatures()(images).double().numpy()


def test_the_distance_is_that_of_scipys_matrix_root() -> None:
    reconstructions, images = sets()
    expected = by_scipy(features_of(reconstructions), features_of(images))
    assert expected > 0.01
    assert measured(reconstructions, images) == pytest.approx(expected, rel=1e-6)


def test_the_distance_of_known_normal_distributions() -> None:
    # commuting covariances: ‖Δμ‖² + Σ (√a − √b)²
    first, second = torch.tensor([1.0, 4.0, 9.0]), torch.tensor([4.0, 4.0, 1.0])
    random = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation = torch.linalg.qr(random)[0]
    covariances = [rotation @ torch.diag(x.double()) @ rotation.T for x in (first, second)]
    zero = torch.zeros(3, dtype=torch.float64)
    distance = frechet_distance(zero, zero + 2, *covariances)
    assert distance.item() == pytest.approx(3 * 4 + 1 + 0 + 4, rel=1e-12)


def test_fewer_images_than_features() -> None:
    # rank 4 of 64: the matrix root of a product that is singular
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(5, 64, generator=generator).double() for _ in range(2))
    covariances = [torch.cov(x.T) for x in (first, second)]
    distance = frechet_distance(first.mean(0), second.mean(0), *covariances)
    # between the few dimensions alone: Tr (Σ₁Σ₂)^½ is the nuclear norm of X₁X₂ᵀ / (n − 1)
    centred = [x - x.mean(0) for x in (first, second)]
    root = np.linalg.norm((centred[0] @ centred[1].T).numpy(), "nuc") / 4
    means = (first.mean(0) - second.mean(0)).square().sum()
    expected = means + covariances[0].trace() + covariances[1].trace() - 2 * root
    assert distance.item() == pytest.approx(expected.item(), rel=1e-10)
    same = frechet_distance(first.mean(0), first.mean(0), covariances[0], covariances[0])
    assert same.item() == pytest.approx(0, abs=1e-10)


def test_one_image_gives_the_distance_of_the_features() -> None:
    reconstructions, images = sets(1)
    expected = np.square(features_of(reconstructions) - features_of(images)).sum()
    assert measured(reconstructions, images) == pytest.approx(expected, rel=1e-6)


def test_batches_of_any_size_and_ranks_give_one_number() -> None:
    reconstructions, images = sets()
    whole = measured(reconstructions, images)
    assert measured(reconstructions, images, 7) == pytest.approx(whole, rel=1e-6)
    ranks = [FrechetDistance(RandomFeatures()) for _ in range(2)]
    for rank, part in zip(ranks, (slice(0, 13), slice(13, 40)), strict=True):
        rank.update(reconstructions[part], images[part])
    ranks[0].merge_state(ranks[1])  # adds states as a reduction over ranks does
    assert ranks[0].compute()["frechet_distance"].item() == pytest.approx(whole, rel=1e-6)


def test_reconstructions_are_clamped() -> None:
    reconstructions, images = sets()
    outside = torch.where(reconstructions.abs() == 1, 3 * reconstructions, reconstructions)
    assert (outside != reconstructions).any()
    assert measured(outside, images) == measured(reconstructions, images)


def test_the_distance_starts_anew_after_reset() -> None:
    reconstructions, images = sets()
    metric = FrechetDistance(RandomFeatures())
    metric.update(-images, images)
    metric.reset()
    metric.update(reconstructions, images)
    assert metric.compute()["frechet_distance"].item() == measured(reconstructions, images)
    assert metric.products.dtype == torch.float64


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_the_distance_of_nothing_is_not_a_number() -> None:
    metric = FrechetDistance(RandomFeatures())
    assert math.isnan(metric.compute()["frechet_distance"])
    reconstructions, images = sets()
    metric.update(reconstructions * torch.nan, images)  # of a training that diverged
    assert math.isnan(metric.compute()["frechet_distance"])


def extractor(weights: Path, **settings: Any) -> FeatureExtractor:
    return FeatureExtractor(backbone="squeezenet1_1", weights=weights, **settings)


def test_features_are_torchvisions_averaged_over_the_image(squeezenet: Path) -> None:
    network = torchvision.models.squeezenet1_1(weights=None)
    network.load_state_dict(torch.load(squeezenet, weights_only=True))
    normalize = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    prepare = v2.Compose([v2.Resize((48, 48), antialias=True), normalize])
    images = torch.rand(2, 3, 70, 90) * 2 - 1
    with torch.no_grad():
        expected = network.eval().features(prepare((images + 1) / 2)).mean((2, 3))
    features = extractor(squeezenet, resolution=48)
    assert features.num_features == 512
    assert features.description == "squeezenet1_1, last stage, images at 48×48"
    torch.testing.assert_close(features(images), expected, rtol=1e-4, atol=1e-5)


def test_features_are_float32_under_autocast_and_take_grey(squeezenet: Path) -> None:
    features = extractor(squeezenet, resolution=32)
    grey = torch.rand(2, 1, 16, 16) * 2 - 1
    expected = features(grey.expand(-1, 3, -1, -1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(features(grey), expected)
    assert expected.dtype == torch.float32


def test_a_metric_keeps_the_network_out_of_checkpoints(squeezenet: Path) -> None:
    metric = FrechetDistance(extractor(squeezenet, resolution=32))
    assert dict(metric.state_dict()) == {}
    assert list(metric.parameters()) == []
