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


def measured(metric: ReconstructionMetrics | LPIPSMetric, size: int = 7) -> dict[str, float]:
    for part in zip(*(x.split(size) for x in pairs()), strict=True):
        metric.update(*part)
    numbers = {name: value.item() for name, value in metric.compute().items()}
    assert tuple(numbers) == metric.names
    return numbers


@pytest.fixture(scope="module")
def loss() -> LPIPSLoss:
    torch.manual_seed(0)
    return LPIPSLoss(backbone="alex", pretrained=False)


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_and_ssim_are_those_of_scikit_image(channels: int) -> None:
    reconstructions, images = pairs(5, channels, size=(28, 40))
    metric = ReconstructionMetrics()
    for part in zip(reconstructions.split(2), images.split(2), strict=True):  # 2, 2, 1
        metric.update(*part)
    psnr, ssim = [], []
    for image, reconstruction in zip(images, reconstructions.clamp(-1, 1), strict=True):
        pair = (image.double().numpy(), reconstruction.double().numpy())
        psnr.append(peak_signal_noise_ratio(*pair, data_range=2))
        ssim.append(
            structural_similarity(
                *pair,
                data_range=2,
                channel_axis=0,
                gaussian_weights=True,
                sigma=1.5,
                use_sample_covariance=False,
            )
        )
    values = metric.compute()
    assert values["psnr"].item() == pytest.approx(np.mean(psnr), abs=1e-4)
    assert values["ssim"].item() == pytest.approx(np.mean(ssim), abs=1e-5)
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
    assert metric.compute()["psnr"].item() == pytest.approx(expected, abs=1e-4)


def test_batches_of_any_size_ranks_and_resets(loss: LPIPSLoss) -> None:
    for make in (ReconstructionMetrics, lambda: LPIPSMetric(loss)):
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
        found = {name: value.item() for name, value in ranks[0].compute().items()}
        assert found == pytest.approx(whole, rel=1e-5)


def test_float32_under_autocast(loss: LPIPSLoss) -> None:
    """Training validates under bf16 autocast, in which SSIM's filter would lose its digits."""
    for make in (ReconstructionMetrics, lambda: LPIPSMetric(loss)):
        plain = measured(make())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert measured(make()) == plain


def test_gpus_do_not_abbreviate_what_ssim_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch lets them convolve with TF32's 10 bits unless told otherwise
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
    metrics = LabelMapMetrics(4)
    truth = torch.tensor([[[0, 0, 0, 1, 1, 2]]])
    found = torch.tensor([[[0, 0, 1, 1, 1, 1]]])
    metrics.update(9 * one_hot(found, 4) - 30, one_hot(truth, 4))
    numbers = metrics.compute()
    assert numbers["pixel_accuracy"].item() == pytest.approx(4 / 6)
    # class 0: 2 of 3, class 1: 2 of 4, class 2: 0 of 1; class 3 occurs nowhere and does not count
    assert numbers["mean_iou"].item() == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)


def test_label_maps_against_scikit_learn_over_uneven_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 5, (7, 6, 8), generator=generator)
    logits = torch.randn(7, 5, 6, 8, generator=generator) + 2 * one_hot(truth, 5)
    metrics = LabelMapMetrics(5)
    for part in (slice(0, 4), slice(4, 7)):
        metrics.update(logits[part], one_hot(truth[part], 5))
    expected, found = truth.flatten(), logits.argmax(1).flatten()
    numbers = metrics.compute()
    accuracy = accuracy_score(expected, found)
    assert 0.5 < accuracy < 0.95  # neither right nor wrong throughout
    assert numbers["pixel_accuracy"].item() == pytest.approx(accuracy, abs=1e-12)
    jaccard = jaccard_score(expected, found, average="macro")
    assert numbers["mean_iou"].item() == pytest.approx(jaccard, abs=1e-12)
    metrics.reset()
    metrics.update(one_hot(truth, 5), one_hot(truth, 5))
    assert [value.item() for value in metrics.compute().values()] == [1.0, 1.0]


def test_usage_and_perplexity_are_of_the_whole_set() -> None:
    metric = CodebookUsage(5)
    for counts in ([4, 0, 0, 0, 0], [0, 2, 2, 0, 0]):
        metric.update(torch.tensor(counts))
    values = metric.compute()
    frequencies = np.array([4, 2, 2]) / 8
    assert values["codebook_usage"].item() == pytest.approx(3 / 5)  # the batches' mean is 1.5 / 5
    expected = np.exp(-(frequencies * np.log(frequencies)).sum())  # the batches' mean is 1.5
    assert values["codebook_perplexity"].item() == pytest.approx(expected)
    assert expected == pytest.approx(2.828, abs=1e-3)


def test_usage_adds_up_over_ranks_and_starts_anew_after_reset() -> None:
    usage, other = CodebookUsage(3), CodebookUsage(3)
    usage.update(torch.tensor([1, 1, 1]))
    usage.reset()
    usage.update(torch.tensor([1, 0, 0]))
    other.update(torch.tensor([0, 1, 0]))
    usage.merge_state(other)
    found = {name: value.item() for name, value in usage.compute().items()}
    assert found == pytest.approx({"codebook_usage": 2 / 3, "codebook_perplexity": 2.0})


def test_likelihood_is_the_mean_over_all_tokens_however_they_come() -> None:
    # p = 1/4 for three tokens of the first batch, 1/2 for the one of the second
    metric = TokenLikelihood()
    metric.update(torch.full((1, 3), math.log(4)))
    metric.update(torch.full((1, 1), math.log(2)))
    assert metric.weight == 4
    found = {name: value.item() for name, value in metric.compute().items()}
    bits = (3 * 2 + 1) / 4
    assert found["bits_per_token"] == pytest.approx(bits, rel=1e-7)
    assert found["nats_per_token"] == pytest.approx(bits * math.log(2), rel=1e-7)
    assert found["perplexity"] == pytest.approx(2**bits)
    assert metric.compute()["nats_per_token"].dtype == torch.float64
    metric.reset()
    metric.update(torch.full((1, 1), torch.nan))
    assert math.isnan(metric.compute()["nats_per_token"])  # not left out
