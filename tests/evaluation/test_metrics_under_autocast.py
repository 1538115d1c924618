import pytest
import torch
import torch.nn.functional as F

from taming.evaluation import ReconstructionMetrics


def test_metrics_are_float32_under_autocast() -> None:
    # training validates under bf16 autocast, in which SSIM's filter would lose its digits
    generator = torch.Generator().manual_seed(0)
    smooth = torch.linspace(-1, 1, 32).expand(4, 1, 32, 32)
    noisy = smooth + 0.05 * torch.randn(4, 1, 32, 32, generator=generator)
    plain, under_autocast = ReconstructionMetrics(), ReconstructionMetrics()
    plain.update(noisy, smooth)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast.update(noisy, smooth)
    assert plain.compute() == under_autocast.compute()


def test_gpus_do_not_abbreviate_what_ssim_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch lets them convolve with TF32's 10 bits unless told otherwise
    convolve, allowed = F.conv2d, []

    def watched(*arguments: object, **named: object) -> torch.Tensor:
        allowed.append(torch.backends.cudnn.allow_tf32)
        return convolve(*arguments, **named)

    monkeypatch.setattr(F, "conv2d", watched)
    before = torch.backends.cudnn.allow_tf32
    images = torch.zeros(1, 1, 16, 16)
    ReconstructionMetrics().update(images, images)
    assert allowed and not any(allowed)
    assert torch.backends.cudnn.allow_tf32 == before
