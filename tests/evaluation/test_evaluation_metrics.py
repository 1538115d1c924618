import numpy as np
import pytest
import torch
from torchmetrics.functional.image import structural_similarity_index_measure

from taming.evaluation import CodebookUsage, ReconstructionMetrics


def pairs(count: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and reconstructions of very different quality."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, 24, 24, generator=generator) * 2 - 1
    noise = torch.randn(count, 3, 24, 24, generator=generator)
    strength = torch.logspace(-2, -0.5, count).view(-1, 1, 1, 1)
    return images, (images + strength * noise).clamp(-1, 1)


def test_psnr_is_the_mean_over_images_with_a_data_range_of_two() -> None:
    images, reconstructions = pairs()
    metric = ReconstructionMetrics()
    metric.update(reconstructions, images)
    errors = np.square(images.double().numpy() - reconstructions.double().numpy()).mean((1, 2, 3))
    expected = (10 * np.log10(2.0**2 / errors)).mean()
    assert metric.compute()["psnr"].item() == pytest.approx(expected, rel=1e-6)


def test_psnr_of_a_known_error() -> None:
    metric = ReconstructionMetrics()
    metric.update(torch.full((2, 1, 16, 16), 0.2), torch.zeros(2, 1, 16, 16))
    assert metric.compute()["psnr"].item() == pytest.approx(20.0, abs=1e-4)  # a tenth of the range


def test_ssim_has_a_data_range_of_two() -> None:
    images, reconstructions = pairs()
    metric = ReconstructionMetrics()
    metric.update(reconstructions, images)
    expected, wrong = (
        structural_similarity_index_measure(
            reconstructions, images, data_range=data_range, return_full_image=True
        )[1][..., 5:-5, 5:-5].mean()
        for data_range in (2.0, 1.0)
    )
    value = metric.compute()["ssim"].item()
    assert value == pytest.approx(float(expected), abs=1e-6)
    assert abs(value - float(wrong)) > 1e-4


def test_a_perfect_reconstruction() -> None:
    images, _ = pairs()
    metric = ReconstructionMetrics()
    metric.update(images, images)
    values = metric.compute()
    assert values["ssim"].item() == pytest.approx(1.0)
    assert values["psnr"].item() == pytest.approx(10 * np.log10(4 / 1e-10), rel=1e-6)  # the bound


def test_batches_of_any_size_give_the_same_means() -> None:
    images, reconstructions = pairs()
    results = []
    for size in (7, 3, 1):
        metric = ReconstructionMetrics()
        for part in zip(reconstructions.split(size), images.split(size), strict=True):
            metric.update(*part)
        results.append({name: value.item() for name, value in metric.compute().items()})
    assert results[1] == pytest.approx(results[0], rel=1e-6)
    assert results[2] == pytest.approx(results[0], rel=1e-6)


def test_ranks_add_up() -> None:
    images, reconstructions = pairs()
    whole, usage = ReconstructionMetrics(), CodebookUsage(3)
    whole.update(reconstructions, images)
    ranks = [ReconstructionMetrics(), ReconstructionMetrics()]
    ranks[0].update(reconstructions[:5], images[:5])
    ranks[1].update(reconstructions[5:], images[5:])
    ranks[0].merge_state(ranks[1])  # adds states as a reduction over ranks does
    for name, value in whole.compute().items():
        assert ranks[0].compute()[name].item() == pytest.approx(value.item(), rel=1e-6)
    other = CodebookUsage(3)
    usage.update(torch.tensor([1, 0, 0]))
    other.update(torch.tensor([0, 1, 0]))
    usage.merge_state(other)
    assert usage.compute()["codebook_perplexity"].item() == pytest.approx(2.0)


def test_reconstructions_are_clamped_first() -> None:
    images = torch.ones(1, 3, 16, 16)
    metric = ReconstructionMetrics()
    metric.update(images * 3, images)
    assert metric.compute()["psnr"] > 100


def test_usage_and_perplexity_are_of_the_whole_set() -> None:
    batches = [torch.tensor([4, 0, 0, 0, 0]), torch.tensor([0, 2, 2, 0, 0])]
    metric = CodebookUsage(5)
    for counts in batches:
        metric.update(counts)
    values = metric.compute()
    frequencies = np.array([4, 2, 2]) / 8
    assert values["codebook_usage"].item() == pytest.approx(3 / 5)  # the batches' mean is 1.5 / 5
    expected = np.exp(-(frequencies * np.log(frequencies)).sum())  # the batches' mean is 1.5
    assert values["codebook_perplexity"].item() == pytest.approx(expected)
    assert expected == pytest.approx(2.828, abs=1e-3)


def test_perplexity_is_between_one_and_the_codebook_size() -> None:
    for counts, perplexity in ((torch.full((16,), 3), 16.0), (torch.eye(16)[3].long(), 1.0)):
        metric = CodebookUsage(16)
        metric.update(counts)
        assert metric.compute()["codebook_perplexity"].item() == pytest.approx(perplexity)


def test_metrics_start_anew_after_reset() -> None:
    usage, reconstruction = CodebookUsage(3), ReconstructionMetrics()
    images, reconstructions = pairs()
    usage.update(torch.tensor([1, 1, 1]))
    reconstruction.update(reconstructions, images)
    usage.reset()
    reconstruction.reset()
    usage.update(torch.tensor([1, 0, 0]))
    reconstruction.update(images, images)
    assert usage.compute()["codebook_usage"].item() == pytest.approx(1 / 3)
    assert reconstruction.compute()["ssim"].item() == pytest.approx(1.0)
