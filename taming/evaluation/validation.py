"""Measurements of a tokenizer, and of a transformer by its tokens' likelihood."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from taming.evaluation.bootstrap import MAX_IMAGES, mean_interval
from taming.evaluation.judging import JudgedImages, Judges
from taming.evaluation.metrics import CodebookUsage, TokenLikelihood, image_quality
from taming.losses import LPIPSLoss
from taming.runtime.contexts import full_precision
from taming.runtime.process_group import gather_shares, sum_over_ranks
from taming.tokenizer import VQGAN
from taming.transformer.orders import to_tokens

__all__ = ["MeasuredValidation", "measure_validation"]

Batch = dict[str, Any]


@dataclass
class MeasuredValidation:
    """Results of `measure_validation`; but for `likelihoods`, they are whole on the first process.

    Attributes:
        reconstructed: the reconstructions, as judged.
        quality: a number an image, `(n,)`, by name: `psnr`, `ssim`, `l1` and perhaps `lpips`.
        codebook: usage, perplexity and entropy of the codes.
        likelihoods: numbers of the tokens, by name of the loss.
    """

    reconstructed: JudgedImages
    quality: dict[str, Tensor] = field(default_factory=dict)
    codebook: dict[str, float] = field(default_factory=dict)
    likelihoods: dict[str, dict[str, Any]] = field(default_factory=dict)

    def numbers(self, real: JudgedImages) -> dict[str, Any]:
        """Returns the numbers of the reconstructions: all together, and by class if there are."""
        numbers, judges = self.reconstructed.numbers(real), self.reconstructed.judges
        for name, values in self.quality.items():
            numbers[name] = values.double().mean().item()
            if len(values) <= MAX_IMAGES:
                numbers[f"{name}_interval"] = mean_interval(values, judges.seed)
        labels, classes = real.labels, judges.class_names
        if classes and labels is not None:
            rows = numbers.setdefault("by_class", [{"class": name} for name in classes])
            for label, row in enumerate(rows):
                chosen = labels == label
                row["num_images"] = int(chosen.sum())
                for name, values in self.quality.items():
                    row[name] = values[chosen].double().mean().item() if chosen.any() else None
        return numbers | self.codebook

    def extremes(self, count: int) -> tuple[list[int], list[int]]:
        """Returns the numbers of the images with the best and the worst PSNR, the best first."""
        order = self.quality["psnr"].argsort(descending=True).tolist()
        count = min(count, len(order) // 2)
        return order[:count], order[len(order) - count :]


@torch.no_grad()
def measure_validation(
    tokenizer: VQGAN,
    batches: Iterable[Batch],
    judges: Judges,
    losses: Mapping[str, Callable[[Tensor, Batch], Tensor]],
    lpips: LPIPSLoss | None = None,
) -> MeasuredValidation:
    """Measures a tokenizer and, by its tokens' likelihood, a transformer.

    `batches` are `images` `(b c H W)` in [-1, 1] and, with classes, `labels` `(b,)`. `losses` are
    functions of tokens `(b n)` and their batch that return −log p of each token, by the name of the
    likelihood in the result.
    """
    found = MeasuredValidation(JudgedImages(judges))
    qualities: list[dict[str, Tensor]] = []
    codebook = CodebookUsage(tokenizer.codebook_size).to(judges.device)
    likelihoods = {name: TokenLikelihood().to(judges.device) for name in losses}
    device = tokenizer.device
    for batch in batches:
        images, labels = batch["images"].to(device), batch.get("labels")
        indices = tokenizer.encode(images)  # (b h w)
        reconstructions = tokenizer.decode(indices).float().clamp(-1, 1)
        tokens = to_tokens(indices)
        for name, likelihood in likelihoods.items():
            likelihood.update(losses[name](tokens, batch).to(judges.device))
        found.reconstructed.update(reconstructions, labels)
        quality = image_quality(reconstructions.to(judges.device), images.to(judges.device))
        if lpips is not None:
            quality["lpips"] = _lpips(lpips, reconstructions, images, judges.device)
        qualities.append({name: values.cpu() for name, values in quality.items()})
        counts = indices.flatten().bincount(minlength=tokenizer.codebook_size)
        codebook.update(counts.to(judges.device))
    found.reconstructed.gather()
    gathered = gather_shares(qualities)
    for name in gathered[0] if gathered else ():
        found.quality[name] = torch.cat([quality[name] for quality in gathered])
    found.codebook = _plain(codebook)
    entropy = math.log2(found.codebook["codebook_perplexity"])
    found.codebook["codebook_entropy"] = entropy  # bits
    for name, likelihood in likelihoods.items():
        found.likelihoods[name] = {
            "num_tokens": int(sum_over_ranks(likelihood.weight)),
            **_plain(likelihood),
            # what needs no transformer: all codes alike; the frequencies of these images' codes
            "bits_per_token_uniform": math.log2(tokenizer.codebook_size),
            "bits_per_token_frequencies": entropy,
        }
    return found


def _lpips(
    lpips: LPIPSLoss, reconstructions: Tensor, images: Tensor, device: torch.device
) -> Tensor:
    pairs = zip(reconstructions.to(device).split(1), images.to(device).split(1), strict=True)
    with torch.autocast(device.type, enabled=False), full_precision():
        return torch.stack([lpips(first, second.float()) for first, second in pairs])


def _plain(metric: Metric) -> dict[str, float]:
    return {name: value.item() for name, value in metric.compute().items()}
