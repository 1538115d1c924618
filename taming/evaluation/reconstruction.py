"""PSNR and SSIM of reconstructions, over a whole data set."""

import torch
from torchmetrics import Metric
from torchmetrics.functional.image import structural_similarity_index_measure

from taming.contexts import full_precision

__all__ = ["ReconstructionMetrics"]


class ReconstructionMetrics(Metric):
    """Means over images of each image's PSNR (dB) and SSIM, with the data range 2 of [-1, 1].

    PSNR = 10 log₁₀(2² / MSE) with the mean over an image's pixels and channels; SSIM with the 11×11
    Gaussian window, σ 1.5, of Wang et al. 2004, averaged, as there and in scikit-image, over the
    windows that lie inside the image. Reconstructions are clamped to [-1, 1] first and not rounded
    to 8 bit.
    """

    MIN_SIDE = 11  # of the images: SSIM's window

    names = ("psnr", "ssim")  # that `compute` gives
    higher_is_better = True
    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.psnr_sum: torch.Tensor
        self.ssim_sum: torch.Tensor
        self.num_images: torch.Tensor
        for name in ("psnr_sum", "ssim_sum", "num_images"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, reconstructions: torch.Tensor, images: torch.Tensor) -> None:
        """Adds two `(b c H W)` of float."""
        # SSIM filters with a convolution
        with torch.autocast(images.device.type, enabled=False), full_precision():
            reconstructions = reconstructions.float().clamp(-1, 1)
            images = images.float()
            squared_error = (reconstructions - images).square().mean((1, 2, 3)).clamp(min=1e-10)
            self.psnr_sum += (10 * torch.log10(4 / squared_error)).sum()
            _, ssim = structural_similarity_index_measure(
                reconstructions,
                images,
                data_range=(-1.0, 1.0),
                reduction="none",
                return_full_image=True,  # over mirrored borders too, which are left out here
            )
            border = self.MIN_SIDE // 2
            self.ssim_sum += ssim[..., border:-border, border:-border].mean((1, 2, 3)).sum()
            self.num_images += len(images)

    def compute(self) -> dict[str, torch.Tensor]:
        """`psnr` in dB and `ssim`."""
        return {"psnr": self.psnr_sum / self.num_images, "ssim": self.ssim_sum / self.num_images}
