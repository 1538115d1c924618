import lpips
import pytest
import torch

from taming.evaluation import LPIPSMetric
from taming.losses import LPIPSLoss


@pytest.fixture(scope="module")
def loss() -> LPIPSLoss:
    torch.manual_seed(0)
    return LPIPSLoss(backbone="alex", pretrained=False)


def pairs(count: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Reconstructions, some values outside [-1, 1], and images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, 32, 32, generator=generator) * 2 - 1
    strength = torch.logspace(-2, 0, count).view(-1, 1, 1, 1)
    return images + strength * torch.randn(images.shape, generator=generator), images


def measured(loss: LPIPSLoss, size: int) -> float:
    metric = LPIPSMetric(loss)
    for part in zip(*(x.split(size) for x in pairs()), strict=True):
        metric.update(*part)
    (name,) = metric.names
    return metric.compute()[name].item()


def test_lpips_is_the_packages_mean_over_images(loss: LPIPSLoss) -> None:
    network = loss.lpips.network
    assert isinstance(network, lpips.LPIPS)
    reconstructions, images = pairs()
    with torch.no_grad():
        each = [
            network(r[None].clamp(-1, 1), i[None]).item()
            for r, i in zip(reconstructions, images, strict=True)
        ]
    assert max(each) > 2 * min(each) > 0
    # 2, 2 and 1 images: the mean of the batches' means would be another number
    assert measured(loss, 2) == pytest.approx(sum(each) / 5, rel=1e-5)
    batch_means = [sum(each[:2]) / 2, sum(each[2:4]) / 2, each[4]]
    assert measured(loss, 2) != pytest.approx(sum(batch_means) / 3, rel=1e-2)
    assert measured(loss, 5) == pytest.approx(measured(loss, 2), rel=1e-5)


def test_ranks_add_up(loss: LPIPSLoss) -> None:
    reconstructions, images = pairs()
    ranks = [LPIPSMetric(loss) for _ in range(2)]
    ranks[0].update(reconstructions[:4], images[:4])
    ranks[1].update(reconstructions[4:], images[4:])
    ranks[0].merge_state(ranks[1])
    assert ranks[0].compute()["lpips"].item() == pytest.approx(measured(loss, 5), rel=1e-5)


@pytest.mark.parametrize("backbone", ["vgg", "alex"])
def test_the_smallest_side_is_that_of_the_network(backbone: str) -> None:
    metric = LPIPSMetric(LPIPSLoss(backbone=backbone, pretrained=False))
    side = LPIPSMetric.MIN_SIDES[backbone]
    metric.update(torch.zeros(1, 3, side, side), torch.ones(1, 3, side, side))
    assert torch.isfinite(metric.compute()["lpips"])
    with pytest.raises(RuntimeError, match="too small"):
        metric.update(torch.zeros(1, 3, side - 1, side - 1), torch.ones(1, 3, side - 1, side - 1))


def test_float32_under_autocast(loss: LPIPSLoss) -> None:
    plain = measured(loss, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measured(loss, 5) == plain
