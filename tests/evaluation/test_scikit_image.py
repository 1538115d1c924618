"""PSNR and SSIM against scikit-image, an independent implementation."""

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from taming.evaluation import ReconstructionMetrics


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_and_ssim_are_those_of_scikit_image(channels: int) -> None:
    generator = torch.Generator().manual_seed(channels)
    base = torch.linspace(-1, 1, 40).expand(5, channels, 28, 40)  # not square
    images = (base + 0.2 * torch.randn(base.shape, generator=generator)).clamp(-1, 1)
    strength = torch.logspace(-2, -0.3, 5).view(-1, 1, 1, 1)
    reconstructions = images + strength * torch.randn(base.shape, generator=generator)

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
