"""Rejection sampling: a classifier selects the best of several candidates."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from taming.generation.generator import ImageGenerator
from taming.generation.options import SamplingOptions
from taming.runtime.contexts import evaluation_mode
from taming.runtime.errors import UserError

__all__ = ["BestSamples", "sample_best"]

NUMBERS_PER_CANDIDATE = 2**32  # distance between the numbers of an image's candidates


class BestSamples(NamedTuple):
    """The selected images, on the generator's device."""

    images: Tensor  # (n c H W) in [-1, 1]
    probabilities: Tensor  # (n,) of the requested class, by the classifier


@torch.no_grad()
def sample_best(
    generator: ImageGenerator,
    classifier: Callable[[Tensor], Tensor],
    num_images: int,
    condition: Tensor | str | Sequence[str],
    num_candidates: int,
    *,
    given_tokens: Tensor | None = None,
    options: SamplingOptions | None = None,
    first_image: int = 0,
    progress: bool = False,
) -> BestSamples:
    """Draws several candidates for each image and keeps the one that most probably shows its class.

    More candidates give better but less varied images. This is classifier-based rejection sampling
    (Razavi et al. 2019, "Generating Diverse High-Fidelity Images with VQ-VAE-2", §3.3).

    Candidate c of image number i is image number i + c · 2³² and has its own random stream.
    Candidate 0 is therefore the image that `generator.sample` draws, and more candidates add to the
    earlier ones. The first of equal candidates wins.

    Args:
        generator: a model of classes.
        classifier: turns images `(b c H W)` in [-1, 1] into logits `(b k)` over the model's
            classes. A module runs in evaluation mode.
        num_images: n.
        condition: see `ImageGenerator.sample_tokens`, as for the arguments below.
        num_candidates: number of candidates for each image.
        given_tokens: fixed first tokens.
        options: how to draw.
        first_image: number of the first image.
        progress: whether to show a progress bar, which counts candidates.

    Raises:
        UserError: if the model has no classes, or the classifier does not give a number for each.
    """
    num_classes = generator.conditioning.num_classes
    if num_classes is None:
        raise UserError(
            "rejection sampling needs a requested class, but this model has no classes."
        )
    labels = generator.conditioning.check(condition, num_images)
    assert labels is not None
    labels = labels.to(generator.device)
    options = options or SamplingOptions()
    if options.seed is None:
        options = replace(options, seed=int(torch.randint(2**62, ())))
    batch_size = options.images_at_once
    probability = partial(_probabilities, classifier, num_classes)

    best: BestSamples | None = None
    total = num_images * num_candidates
    bar = tqdm(None, "sampling", total, unit="image", disable=not progress)
    with bar, evaluation_mode(classifier) if isinstance(classifier, nn.Module) else nullcontext():
        for candidate in range(num_candidates):
            number = first_image + candidate * NUMBERS_PER_CANDIDATE
            images = generator.sample(
                num_images, labels, given_tokens=given_tokens, options=options, first_image=number
            )
            batches = zip(images.split(batch_size), labels.split(batch_size), strict=True)
            probabilities = torch.cat([probability(*batch) for batch in batches])
            candidates = BestSamples(images, probabilities)
            best = best or candidates
            better = candidates.probabilities > best.probabilities
            for old, new in zip(best, candidates, strict=True):
                old[better] = new[better]
            bar.update(num_images)
    assert best is not None, f"{num_candidates} candidates"
    return best


def _probabilities(
    classifier: Callable[[Tensor], Tensor], num_classes: int, images: Tensor, labels: Tensor
) -> Tensor:
    """Returns the probability of each image's own class, `(b,)` float32."""
    logits = classifier(images)
    if logits.shape != (len(images), num_classes):
        raise UserError(
            f"the classifier returns shape {tuple(logits.shape)} for {len(images)} images. It must "
            f"return a logit for each of the model's {num_classes} classes."
        )
    own = labels.to(logits.device)[:, None]
    return logits.float().softmax(dim=-1).gather(1, own).squeeze(1).to(images.device)
