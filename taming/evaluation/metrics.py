"""Quality of reconstructions, codebook usage and likelihood, over a data set and all processes.

torchmetrics computes PSNR, SSIM and the confusion matrix, and lpips computes LPIPS. The sums are
ours because they must be float64 and must count images, not batches.
"""

import math

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassConfusionMatrix
from torchmetrics.functional.image import (
    peak_signal_noise_ratio,
    structural_similarity_index_measure,
)

from taming.losses import LPIPSLoss
from taming.runtime.contexts import full_precision

__all__ = ["CodebookUsage", "ExactMean", "LPIPSMetric", "LabelMapMetrics",
    "ReconstructionMetrics", "TokenLikelihood", "codebook_usage", "image_lpips",
    "image_psnr", "image_quality", "metrics_device"]  # fmt: skip

MAX_PSNR = 10 * math.log10(2**2 / 1e-10)  # of equal images
SSIM_WINDOW = 11  # pixels; images are at least as large


def metrics_device(device: torch.device | None) -> torch.device:
    """Returns the device that computes metrics next to a model on `device`; MPS has no float64."""
    return torch.device("cpu") if device is None or device.type == "mps" else device


def image_psnr(reconstructions: Tensor, images: Tensor) -> Tensor:
    """Returns each image's PSNR in dB, `(b,)`, at most 106; both are `(b c H W)` in [-1, 1]."""
    psnr = peak_signal_noise_ratio(
        reconstructions, images, (-1.0, 1.0), reduction="none", dim=(1, 2, 3)
    )
    return psnr.clamp(max=MAX_PSNR)


def image_quality(reconstructions: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Returns each image's `psnr`, `ssim` and `l1`, `(b,)`; both are float `(b c H W)`.

    See `ReconstructionMetrics`; `l1` is the mean absolute difference, in [0, 2].
    """
    # SSIM filters with a convolution, which needs all digits of float32.
    with torch.autocast(images.device.type, enabled=False), full_precision():
        reconstructions, images = reconstructions.float().clamp(-1, 1), images.float()
        _, ssim = structural_similarity_index_measure(
            reconstructions, images, data_range=(-1.0, 1.0), reduction="none",
            return_full_image=True,
        )  # fmt: skip
        border = SSIM_WINDOW // 2
        return {
            "psnr": image_psnr(reconstructions, images),
            "ssim": ssim[..., border:-border, border:-border].mean((1, 2, 3)),
            "l1": (reconstructions - images).abs().mean((1, 2, 3)),
        }


def image_lpips(lpips: LPIPSLoss, reconstructions: Tensor, images: Tensor) -> Tensor:
    """Returns each image's LPIPS distance, `(b,)`; both are `(b c H W)` in [-1, 1]."""
    pairs = zip(reconstructions.split(1), images.float().split(1), strict=True)
    with torch.autocast(images.device.type, enabled=False), full_precision():
        return torch.stack([lpips(*pair) for pair in pairs])


class ReconstructionMetrics(Metric):
    """Means over images of each image's PSNR (dB) and SSIM, with the data range 2 of [-1, 1].

    PSNR = 10 log₁₀(2² / MSE), where MSE is the mean over an image's pixels and channels. SSIM uses
    the 11×11 Gaussian window, σ 1.5, of Wang et al. 2004. As there and in scikit-image, it is
    averaged over the windows that lie inside the image; torchmetrics alone would also average over
    mirrored borders. Reconstructions are clamped to [-1, 1] and not rounded to 8 bits.
    """

    min_side = SSIM_WINDOW
    names = ("psnr", "ssim")  # keys of `compute`
    higher_is_better = True
    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.sums: Tensor  # in the order of `names`
        self.num_images: Tensor
        for name, shape in {"sums": (2,), "num_images": ()}.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, reconstructions: Tensor, images: Tensor) -> None:
        """Adds a batch; both are float `(b c H W)`."""
        quality = image_quality(reconstructions, images)
        self.sums += torch.stack([quality[name].sum() for name in self.names])
        self.num_images += len(images)

    def compute(self) -> dict[str, Tensor]:
        """Returns `psnr` in dB and `ssim`."""
        return dict(zip(self.names, self.sums / self.num_images, strict=True))


class ExactMean(MeanMetric):
    """A weighted mean, added up in float64; NaN stays NaN."""

    def __init__(self) -> None:
        super().__init__(nan_strategy=math.nan)  # "disable" would ignore the weights
        self.set_dtype(torch.float64)


class LPIPSMetric(ExactMean):
    """Mean over images of each image's LPIPS distance to its reconstruction; lower is better.

    Zhang et al. 2018. Reconstructions are clamped to [-1, 1], and the network runs in float32. Its
    weights do not enter checkpoints.
    """

    names = ("lpips",)  # keys of `compute`
    higher_is_better = False  # type: ignore[assignment]

    def __init__(self, lpips: LPIPSLoss) -> None:
        super().__init__()
        self.lpips = lpips
        self.min_side = lpips.min_side

    @torch.no_grad()
    def update(self, reconstructions: Tensor, images: Tensor) -> None:  # type: ignore[override]
        """Adds a batch; both are float `(b c H W)`, c of 3 or 1."""
        with torch.autocast(images.device.type, enabled=False), full_precision():
            mean = self.lpips(reconstructions.float().clamp(-1, 1), images.float())
        super().update(mean, len(images))  # a batch counts by its images

    def compute(self) -> dict[str, Tensor]:  # type: ignore[override]
        return {"lpips": super().compute()}


class LabelMapMetrics(MulticlassConfusionMatrix):
    """Pixel accuracy and mean intersection over union, from one confusion matrix of all pixels.

    A pixel's class is its channel with the largest value. Mean IoU averages TP / (TP + FP + FN)
    over the classes that occur in the images or the reconstructions (Everingham et al. 2010, "The
    PASCAL VOC Challenge", §4.3). The class of unlabelled pixels counts like any other, because a
    tokenizer must reproduce it too. torchmetrics' own IoU is float32.
    """

    names = ("pixel_accuracy", "mean_iou")  # keys of `compute`
    higher_is_better = True

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, validate_args=False)

    def update(self, reconstructions: Tensor, images: Tensor) -> None:
        """Adds a batch of logits and one-hot label maps, both `(b c H W)`."""
        super().update(reconstructions.argmax(1), images.argmax(1))

    def compute(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Returns `pixel_accuracy` and `mean_iou`, both in [0, 1]."""
        confusion = super().compute().double()  # pixels by true class and reconstructed class
        hits = confusion.diagonal()
        unions = confusion.sum(0) + confusion.sum(1) - hits
        occurs = unions > 0
        return {
            "pixel_accuracy": hits.sum() / confusion.sum(),
            "mean_iou": (hits[occurs] / unions[occurs]).mean(),
        }


def codebook_usage(counts: Tensor) -> dict[str, Tensor]:
    """Returns usage and perplexity of the codes from their counts, `(codebook_size,)`.

    `codebook_usage` is the share of codes with a count of 1 or more, in [0, 1].
    `codebook_perplexity` is exp of the entropy of the code frequencies in nats, in
    [1, codebook_size].
    """
    frequencies = counts.double() / counts.sum().clamp(min=1)
    return {
        "codebook_usage": (counts > 0).double().mean(),
        "codebook_perplexity": torch.special.entr(frequencies).sum().exp(),
    }


class CodebookUsage(Metric):
    """The numbers of `codebook_usage`, over all updates and processes."""

    names = ("codebook_usage", "codebook_perplexity")  # keys of `compute`
    higher_is_better = True
    full_state_update = False

    def __init__(self, codebook_size: int) -> None:
        super().__init__()
        self.counts: Tensor
        zeros = torch.zeros(codebook_size, dtype=torch.int64)
        self.add_state("counts", zeros, dist_reduce_fx="sum")

    def update(self, code_counts: Tensor) -> None:
        """Adds `(codebook_size,)` int64 counts."""
        self.counts += code_counts

    def compute(self) -> dict[str, Tensor]:
        """See `codebook_usage`."""
        return codebook_usage(self.counts)


class TokenLikelihood(ExactMean):
    """Mean negative log-likelihood of a token, over all tokens of all updates and processes.

    `update` takes −log p of tokens in nats, of any shape. `compute` returns `nats_per_token`,
    `bits_per_token` and `perplexity`, which is exp of the nats. A model with a perplexity of k
    predicts as well as one that chooses evenly among k tokens. torchmetrics' Perplexity adds up in
    float32.

    Attributes:
        weight: the number of tokens.
    """

    def compute(self) -> dict[str, Tensor]:  # type: ignore[override]
        nats = super().compute()
        return {
            "nats_per_token": nats,
            "bits_per_token": nats / math.log(2),
            "perplexity": nats.exp(),
        }
