"""Metrics against numbers by hand and independent implementations."""

import math

import lpips
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from sklearn.metrics import accuracy_score, jaccard_score
from torch import Tensor
from torchmetrics import Metric

from taming.data.readers import one_hot
from taming.evaluation import (
    CodebookUsage,
    LabelMapMetrics,
    LPIPSMetric,
    ReconstructionMetrics,
    TokenLikelihood,
)
from taming.losses import LPIPSLoss


def pairs(
    count: int = 7, channels: int = 3, size: tuple[int, int] = (32, 36)
) -> tuple[Tensor, Tensor]:
    """Reconstructions of very different quality, some values outside [-1, 1], and images."""
    generator = torch.Generator().manual_seed(channels)
    base = torch.linspace(-1, 1, size[1]).expand(count, channels, *size)
    images = (base + 0.2 * torch.randn(base.shape, generator=generator)).clamp(-1, 1)
    strength = torch.logspace(-2, -0.3, count).view(-1, 1, 1, 1)
    return images + strength * torch.randn(base.shape, generator=generator), images


def computed(metric: Metric) -> dict[str, float]:
    return {name: value.item() for name, value in metric.compute().items()}


def measured(metric: ReconstructionMetrics | LPIPSMetric, size: int = 7) -> dict[str, float]:
    for batch in zip(*(x.split(size) for x in pairs()), strict=True):
        metric.update(*batch)
    numbers = computed(metric)
    assert tuple(numbers) == metric.names
    return numbers


@pytest.fixture(scope="module")
def loss() -> LPIPSLoss:
    torch.manual_seed(0)
    return LPIPSLoss(backbone="alex", pretrained=False)


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_and_ssim_equal_scikit_images(channels: int) -> None:
    reconstructions, images = pairs(5, channels, size=(28, 40))
    metric = ReconstructionMetrics()
    for batch in zip(reconstructions.split(2), images.split(2), strict=True):  # 2, 2, 1
        metric.update(*batch)
    psnr, ssim = [], []
    windows = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    for image, reconstruction in zip(images, reconstructions.clamp(-1, 1), strict=True):
        pair = (image.double().numpy(), reconstruction.double().numpy())
        psnr.append(peak_signal_noise_ratio(*pair, data_range=2))
        ssim.append(structural_similarity(*pair, data_range=2, channel_axis=0, **windows))
    numbers = computed(metric)
    assert numbers["psnr"] == pytest.approx(np.mean(psnr), abs=1e-4)
    assert numbers["ssim"] == pytest.approx(np.mean(ssim), abs=1e-5)
    assert max(ssim) - min(ssim) > 0.2  # the images differ enough for a mean to mean something


@pytest.mark.parametrize(
    ("value", "image", "expected"),
    [
        (0.2, 0.0, 20.0),  # a tenth of the range
        (0.5, 0.5, 10 * np.log10(4 / 1e-10)),  # the bound
        (3.0, 1.0, 10 * np.log10(4 / 1e-10)),  # clamped first
    ],
)
def test_psnr_of_a_known_error(value: float, image: float, expected: float) -> None:
    metric = ReconstructionMetrics()
    metric.update(torch.full((2, 1, 16, 16), value), torch.full((2, 1, 16, 16), image))
    assert computed(metric)["psnr"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["reconstruction", "lpips"])
def test_batches_processes_resets_and_autocast_give_one_number(name: str, loss: LPIPSLoss) -> None:
    def make() -> ReconstructionMetrics | LPIPSMetric:
        return ReconstructionMetrics() if name == "reconstruction" else LPIPSMetric(loss)

    whole = measured(make())
    for size in (3, 1):
        assert measured(make(), size) == pytest.approx(whole, rel=1e-5)
    reconstructions, images = pairs()
    ranks = [make(), make()]
    ranks[0].update(images, images)
    ranks[0].reset()
    ranks[0].update(reconstructions[:5], images[:5])
    ranks[1].update(reconstructions[5:], images[5:])
    ranks[0].merge_state(ranks[1])  # adds states as a reduction over ranks does
    assert computed(ranks[0]) == pytest.approx(whole, rel=1e-5)
    # training validates under bf16 autocast, in which SSIM's filter would lose its digits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measured(make()) == whole


def test_ssim_filters_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch lets GPUs convolve with TF32's 10 bits unless it is disabled
    convolve, allowed = F.conv2d, []

    def watched(*arguments: object, **named: object) -> Tensor:
        allowed.append(torch.backends.cudnn.allow_tf32)
        return convolve(*arguments, **named)

    monkeypatch.setattr(F, "conv2d", watched)
    before = torch.backends.cudnn.allow_tf32
    measured(ReconstructionMetrics())
    assert allowed and not any(allowed)
    assert torch.backends.cudnn.allow_tf32 == before


def test_lpips_is_the_packages_mean_over_images(loss: LPIPSLoss) -> None:
    network = loss.lpips.network
    assert isinstance(network, lpips.LPIPS)
    with torch.no_grad():
        each = [
            network(r[None].clamp(-1, 1), i[None]).item() for r, i in zip(*pairs(), strict=True)
        ]
    assert max(each) > 2 * min(each) > 0
    # 3, 3 and 1 images: the mean of the batches' means would be another number
    value = measured(LPIPSMetric(loss), 3)["lpips"]
    assert value == pytest.approx(np.mean(each), rel=1e-5)
    batch_means = [np.mean(each[:3]), np.mean(each[3:6]), each[6]]
    assert value != pytest.approx(np.mean(batch_means), rel=1e-2)


def test_label_maps_by_hand() -> None:
    metric = LabelMapMetrics(4)
    truth = torch.tensor([[[0, 0, 0, 1, 1, 2]]])
    maps = torch.tensor([[[0, 0, 1, 1, 1, 1]]])
    metric.update(9 * one_hot(maps, 4) - 30, one_hot(truth, 4))
    numbers = computed(metric)
    assert numbers["pixel_accuracy"] == pytest.approx(4 / 6)
    # class 0: 2 of 3, class 1: 2 of 4, class 2: 0 of 1; class 3 occurs nowhere and does not count
    assert numbers["mean_iou"] == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)


def test_label_maps_equal_scikit_learns_over_uneven_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 5, (7, 6, 8), generator=generator)
    logits = torch.randn(7, 5, 6, 8, generator=generator) + 2 * one_hot(truth, 5)
    metric = LabelMapMetrics(5)
    for part in (slice(0, 4), slice(4, 7)):
        metric.update(logits[part], one_hot(truth[part], 5))
    classes = truth.flatten(), logits.argmax(1).flatten()
    numbers, accuracy = computed(metric), accuracy_score(*classes)
    assert 0.5 < accuracy < 0.95  # neither right nor wrong throughout
    assert numbers["pixel_accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert numbers["mean_iou"] == pytest.approx(jaccard_score(*classes, average="macro"), abs=1e-12)
    metric.reset()
    metric.update(one_hot(truth, 5), one_hot(truth, 5))
    assert list(computed(metric).values()) == [1.0, 1.0]


def test_usage_and_perplexity_of_the_whole_set() -> None:
    metric, other = CodebookUsage(5), CodebookUsage(5)
    metric.update(torch.ones(5, dtype=torch.int64))
    metric.reset()
    metric.update(torch.tensor([4, 0, 0, 0, 0]))
    other.update(torch.tensor([0, 2, 2, 0, 0]))
    metric.merge_state(other)
    numbers, frequencies = computed(metric), np.array([4, 2, 2]) / 8
    assert numbers["codebook_usage"] == pytest.approx(3 / 5)  # the batches' mean is 1.5 / 5
    expected = np.exp(-(frequencies * np.log(frequencies)).sum())  # the batches' mean is 1.5
    assert numbers["codebook_perplexity"] == pytest.approx(expected)
    assert expected == pytest.approx(2.828, abs=1e-3)


def test_likelihood_is_the_mean_over_all_tokens_in_any_batches() -> None:
    # p = 1/4 for three tokens of the first batch, 1/2 for the one of the second
    metric = TokenLikelihood()
    metric.update(torch.full((1, 3), math.log(4)))
    metric.update(torch.full((1, 1), math.log(2)))
    assert metric.weight == 4
    numbers, bits = computed(metric), (3 * 2 + 1) / 4
    assert numbers["bits_per_token"] == pytest.approx(bits, rel=1e-7)
    assert numbers["nats_per_token"] == pytest.approx(bits * math.log(2), rel=1e-7)
    assert numbers["perplexity"] == pytest.approx(2**bits)
    assert metric.compute()["nats_per_token"].dtype == torch.float64
    metric.reset()
    metric.update(torch.full((1, 1), torch.nan))
    assert math.isnan(computed(metric)["nats_per_token"])  # not left out
