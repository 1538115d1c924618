"""Held-out images through a model: reconstruction quality and token likelihood."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from taming.evaluation.intervals import mean_interval
from taming.evaluation.judges import JudgedImages, gather_rows
from taming.evaluation.metrics import CodebookUsage, TokenLikelihood, image_lpips, image_quality
from taming.evaluation.real_images import RealImages
from taming.evaluation.samples import condition_key
from taming.generation import ImageGenerator
from taming.pictures import pixel_grid, to_uint8
from taming.runtime.contexts import evaluation_mode
from taming.runtime.process_group import rank, sum_over_ranks
from taming.tokenizer import VQGAN

__all__ = ["measure_validation"]

NUM_EXTREMES = 8  # pictures of the best reconstructions, and of the worst

Batch = dict[str, Any]


@torch.no_grad()
def measure_validation(
    subject: ImageGenerator | VQGAN, real: RealImages
) -> tuple[dict[str, Any], dict[str, Image.Image]]:
    """Measures a tokenizer, or a generator and its tokenizer, on the held-out images.

    Returns:
        The numbers, `reconstructions` and for a generator `likelihood`, and the picture
        `reconstructions.png`. Both are empty except on the first process.
    """
    tokenizer = subject if isinstance(subject, VQGAN) else subject.require_tokenizer()
    judges, device = real.judges, tokenizer.device
    judged = JudgedImages(judges, originals=real.held_out)
    qualities: list[dict[str, Tensor]] = []
    codebook = CodebookUsage(tokenizer.codebook_size).to(judges.device)
    losses = _token_losses(subject)
    likelihoods = {name: TokenLikelihood().to(judges.device) for name in losses}
    with evaluation_mode(subject):
        held_out = real.held_out_dataset, real.held_out_numbers
        for _, batch in real.batches(*held_out, "reconstructions"):
            images = batch["images"].to(device)
            indices = tokenizer.encode(images)  # (b h w)
            reconstructions = tokenizer.decode(indices).float().clamp(-1, 1)
            for name, likelihood in likelihoods.items():
                likelihood.update(losses[name](indices, batch).to(judges.device))
            judged.update(reconstructions, batch.get("labels"))
            pair = reconstructions.to(judges.device), images.to(judges.device)
            quality = image_quality(*pair)
            if judges.lpips is not None:
                quality["lpips"] = image_lpips(judges.lpips, *pair)
            qualities.append({name: values.cpu() for name, values in quality.items()})
            counts = indices.flatten().bincount(minlength=tokenizer.codebook_size)
            codebook.update(counts.to(judges.device))
    judged.gather()
    quality = gather_rows(qualities)
    usage = {name: value.item() for name, value in codebook.compute().items()}
    entropy = math.log2(usage["codebook_perplexity"])
    numbers: dict[str, Any] = {}
    for name, likelihood in likelihoods.items():
        numbers[name] = {
            "num_tokens": int(sum_over_ranks(likelihood.weight)),
            **{key: value.item() for key, value in likelihood.compute().items()},
            # what needs no transformer: equal probabilities, and the frequencies of the codes
            "bits_per_token_uniform": math.log2(tokenizer.codebook_size),
            "bits_per_token_frequencies": entropy,
        }
    if rank() > 0:
        return {}, {}
    reconstructed = judged.numbers(real.held_out) | real.reference_numbers(judged)
    _add_quality(reconstructed, quality, real)
    numbers["reconstructions"] = reconstructed | usage | {"codebook_entropy": entropy}
    return numbers, {"reconstructions.png": _best_and_worst(tokenizer, quality["psnr"], real)}


def _token_losses(subject: ImageGenerator | VQGAN) -> dict[str, Callable[[Tensor, Batch], Tensor]]:
    """Returns functions from indices `(b h w)` and their batch to −log p of each, by likelihood."""
    if isinstance(subject, VQGAN):
        return {}
    generator, key = subject, condition_key(subject)

    def losses_of(indices: Tensor, batch: Batch) -> Tensor:
        return generator.token_losses(generator.to_tokens(indices), batch[key] if key else None)

    def without_condition(indices: Tensor, batch: Batch) -> Tensor:
        return generator.token_losses(generator.to_tokens(indices))

    losses: dict[str, Callable[[Tensor, Batch], Tensor]] = {"likelihood": losses_of}
    if key and generator.conditioning.can_do_without:
        losses["likelihood_without_condition"] = without_condition
    return losses


def _add_quality(numbers: dict[str, Any], quality: dict[str, Tensor], real: RealImages) -> None:
    """Adds the means of `quality`, one number per image, `(n,)`: of all images and by class."""
    for name, values in quality.items():
        numbers[name] = values.double().mean().item()
        numbers[f"{name}_interval"] = mean_interval(values)
    labels, classes = real.held_out.labels, real.judges.class_names
    if classes and labels is not None:
        rows = numbers.setdefault("by_class", [{"class": name} for name in classes])
        for label, row in enumerate(rows):
            in_class = labels == label
            row["num_images"] = int(in_class.sum())
            for name, values in quality.items():
                row[name] = values[in_class].double().mean().item() if in_class.any() else None


def _best_and_worst(tokenizer: VQGAN, psnr: Tensor, real: RealImages) -> Image.Image:
    """Shows the images with the best and the worst PSNR, each next to its reconstruction."""
    order = psnr.argsort(descending=True).tolist()
    count = min(NUM_EXTREMES, len(order) // 2)
    extremes = [("best", row) for row in order[:count]]
    extremes += [("worst", row) for row in order[len(order) - count :]]
    pictures, captions = [], []
    for title, row in extremes:
        image = real.held_out_dataset[real.held_out_numbers[row]]["images"][None]
        reconstruction = tokenizer.decode(tokenizer.encode(image.to(tokenizer.device)))
        pictures += [to_uint8(image)[0], to_uint8(reconstruction)[0]]
        captions += [title, f"{psnr[row]:.1f} dB"]
    return pixel_grid(np.stack(pictures), 8, captions, min_side=96)
