import torch

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
