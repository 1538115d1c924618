"""LPIPS of reconstructions, over a whole data set."""

import torch
from torchmetrics import Metric

from taming.contexts import full_precision
from taming.losses import LPIPSLoss

__all__ = ["LPIPSMetric"]


class LPIPSMetric(Metric):
    """Mean over images of each image's LPIPS distance to its reconstruction; lower is better.

    Zhang et al. 2018. Reconstructions are clamped to [-1, 1] first; always in float32.

    Args:
        lpips: the measure; its weights are in no checkpoint.
    """

    MIN_SIDES = LPIPSLoss.MIN_SIDES  # of the images

    names = ("lpips",)  # that `compute` gives
    higher_is_better = False
    full_state_update = False

    def __init__(self, lpips: LPIPSLoss) -> None:
        super().__init__()
        self.lpips = lpips
        self.min_side = lpips.min_side
        self.lpips_sum: torch.Tensor
        self.num_images: torch.Tensor
        for name in ("lpips_sum", "num_images"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, reconstructions: torch.Tensor, images: torch.Tensor) -> None:
        """Adds two `(b c H W)` of float, c of 3 or 1."""
        with torch.autocast(images.device.type, enabled=False), full_precision():
            mean = self.lpips(reconstructions.float().clamp(-1, 1), images.float())
        self.lpips_sum += mean.double() * len(images)  # batches of any size count by their images
        self.num_images += len(images)

    def compute(self) -> dict[str, torch.Tensor]:
        """`lpips`."""
        return {"lpips": self.lpips_sum / self.num_images}
