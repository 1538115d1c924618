"""Quality of reconstructions, codebook usage and likelihood, over a data set and all ranks."""

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

__all__ = [
    "CodebookUsage",
    "ExactMean",
    "LPIPSMetric",
    "LabelMapMetrics",
    "ReconstructionMetrics",
    "TokenLikelihood",
    "codebook_usage",
    "image_psnr",
    "image_quality",
]

MAX_PSNR = 10 * math.log10(2**2 / 1e-10)  # of equal images
SSIM_WINDOW = 11  # pixels; images are at least as large


def image_psnr(reconstructions: Tensor, images: Tensor) -> Tensor:
    """Returns each image's PSNR in dB, `(b,)`, at most 106; both are `(b c H W)` in [-1, 1]."""
    psnr = peak_signal_noise_ratio(
        reconstructions, images, (-1.0, 1.0), reduction="none", dim=(1, 2, 3)
    )
    return psnr.clamp(max=MAX_PSNR)


def image_quality(reconstructions: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Returns each image's `psnr`, `ssim` and `l1`, `(b,)`; both are `(b c H W)` of float.

    See `ReconstructionMetrics`; `l1` is the mean absolute difference, in [0, 2].
    """
    # SSIM filters with a convolution
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


class ReconstructionMetrics(Metric):
    """Means over images of each image's PSNR (dB) and SSIM, with the data range 2 of [-1, 1].

    PSNR = 10 log₁₀(2² / MSE) with the mean over an image's pixels and channels; SSIM with the 11×11
    Gaussian window, σ 1.5, of Wang et al. 2004, averaged, as there and in scikit-image, over the
    windows that lie inside the image (torchmetrics averages over mirrored borders too).
    Reconstructions are clamped to [-1, 1] first and not rounded to 8 bit.
    """

    min_side = SSIM_WINDOW
    names = ("psnr", "ssim")  # of the numbers that `compute` returns
    higher_is_better = True
    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.sums: Tensor  # of each number
        self.num_images: Tensor
        for name, shape in {"sums": (2,), "num_images": ()}.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, reconstructions: Tensor, images: Tensor) -> None:
        """Adds a batch; both are `(b c H W)` of float."""
        found = image_quality(reconstructions, images)
        self.sums += torch.stack([found[name].sum() for name in self.names])
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

    Zhang et al. 2018. Reconstructions are clamped to [-1, 1] first; always in float32. The weights
    are saved in no checkpoint.
    """

    names = ("lpips",)  # of the numbers that `compute` returns
    higher_is_better = False  # type: ignore[assignment]

    def __init__(self, lpips: LPIPSLoss) -> None:
        super().__init__()
        self.lpips = lpips
        self.min_side = lpips.min_side

    @torch.no_grad()
    def update(self, reconstructions: Tensor, images: Tensor) -> None:  # type: ignore[override]
        """Adds a batch; both are `(b c H W)` of float, c of 3 or 1."""
        with torch.autocast(images.device.type, enabled=False), full_precision():
            mean = self.lpips(reconstructions.float().clamp(-1, 1), images.float())
        super().update(mean, len(images))  # batches of any size count by their images

    def compute(self) -> dict[str, Tensor]:  # type: ignore[override]
        return {"lpips": super().compute()}


class LabelMapMetrics(MulticlassConfusionMatrix):
    """Pixel accuracy and mean intersection over union, from one confusion matrix of all pixels.

    A pixel's class is its channel with the largest value. Mean IoU is the mean, over the classes
    that occur in the images or the reconstructions, of TP / (TP + FP + FN) (Everingham et al. 2010,
    "The PASCAL VOC Challenge", §4.3). The class of unlabelled pixels counts like any other: a
    tokenizer must reproduce it too.
    """

    names = ("pixel_accuracy", "mean_iou")  # of the numbers that `compute` returns
    higher_is_better = True

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, validate_args=False)

    def update(self, reconstructions: Tensor, images: Tensor) -> None:
        """Adds a batch: logits and one-hot label maps, both `(b c H W)`."""
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
    """Returns usage and perplexity of the codes from how often each was chosen, `(codebook_size,)`.

    `codebook_usage` is the fraction of codes chosen at least once, in [0, 1], and
    `codebook_perplexity` exp of the entropy of the chosen codes in nats, in [1, codebook_size].
    """
    frequencies = counts.double() / counts.sum().clamp(min=1)
    return {
        "codebook_usage": (counts > 0).double().mean(),
        "codebook_perplexity": torch.special.entr(frequencies).sum().exp(),
    }


class CodebookUsage(Metric):
    """The numbers of `codebook_usage`, over all updates and ranks."""

    names = ("codebook_usage", "codebook_perplexity")  # of the numbers that `compute` returns
    higher_is_better = True
    full_state_update = False

    def __init__(self, codebook_size: int) -> None:
        super().__init__()
        self.counts: Tensor
        self.add_state(
            "counts", torch.zeros(codebook_size, dtype=torch.int64), dist_reduce_fx="sum"
        )

    def update(self, code_counts: Tensor) -> None:
        """Adds `(codebook_size,)` int64 counts."""
        self.counts += code_counts

    def compute(self) -> dict[str, Tensor]:
        """See `codebook_usage`."""
        return codebook_usage(self.counts)


class TokenLikelihood(ExactMean):
    """Mean negative log-likelihood of a token, over all tokens of all updates and ranks.

    `update` takes −log p of tokens in nats, of any shape. `compute` returns `nats_per_token`; the
    same with base 2, `bits_per_token`; and `perplexity`, exp of the nats: the number of equally
    probable tokens that would be as hard to predict. (torchmetrics' Perplexity adds up in float32.)

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
