"""One pass over validation images: reconstruction, codes, likelihood, and what judges see."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from taming.evaluation.judging import JudgedImages, Judges
from taming.evaluation.reconstruction import ReconstructionMetrics
from taming.evaluation.tokens import CodebookUsage, TokenLikelihood
from taming.sequence import to_tokens
from taming.vqgan import VQGAN

__all__ = ["measure_validation"]

Batch = dict[str, Any]


@torch.no_grad()
def measure_validation(
    tokenizer: VQGAN,
    batches: Iterable[Batch],
    judges: Judges,
    logits: Mapping[str, Callable[[Tensor, Batch], Tensor]],
) -> tuple[JudgedImages, dict[str, Any]]:
    """Measures a tokenizer and, by its tokens' likelihood, a transformer.

    Args:
        tokenizer: in evaluation mode.
        batches: `images` `(b c H W)` in [-1, 1] and, with classes, `labels` `(b,)`.
        judges: see there.
        logits: functions of tokens `(b n)` and their batch that return the transformer's logits
            `(b n v)`; by the name of the likelihood in the result.

    Returns:
        The images as judged, and the numbers: `reconstructions` and each likelihood.
    """
    real, reconstructed = JudgedImages(judges), JudgedImages(judges)
    quality = ReconstructionMetrics().to(judges.device)
    codebook = CodebookUsage(tokenizer.codebook_size).to(judges.device)
    likelihoods = {name: TokenLikelihood().to(judges.device) for name in logits}
    device = tokenizer.last_layer.device
    for batch in batches:
        images, labels = batch["images"].to(device), batch.get("labels")
        indices = tokenizer.encode(images)  # (b h w)
        reconstructions = tokenizer.decode(indices).float().clamp(-1, 1)
        tokens = to_tokens(indices)
        for name, likelihood in likelihoods.items():
            predicted = logits[name](tokens, batch)
            likelihood.update(predicted.to(judges.device), tokens.to(judges.device))
        real.update(images, labels)
        reconstructed.update(reconstructions, labels)
        quality.update(reconstructions.to(judges.device), images.to(judges.device))
        counts = indices.flatten().bincount(minlength=tokenizer.codebook_size)
        codebook.update(counts.to(judges.device))
    numbers: dict[str, Any] = {
        "reconstructions": {**reconstructed.numbers(real), **_plain(quality), **_plain(codebook)}
    }
    for name, likelihood in likelihoods.items():
        numbers[name] = {"num_tokens": int(likelihood.num_tokens), **_plain(likelihood)}
    return real, numbers


def _plain(metric: Metric) -> dict[str, float]:
    return {name: value.item() for name, value in metric.compute().items()}
