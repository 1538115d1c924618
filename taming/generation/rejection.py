"""Rejection sampling: of several candidates the one a classifier is surest of."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from taming.contexts import evaluation_mode
from taming.errors import UserError
from taming.generation.checks import as_condition
from taming.generation.generator import ImageGenerator
from taming.generation.options import SamplingOptions
from taming.generation.tokens import BATCH_SIZE

__all__ = ["BestSamples", "sample_best"]

NUMBERS_A_CANDIDATE = 2**32  # how many numbers lie between an image's candidates


class BestSamples(NamedTuple):
    """The images kept, on the generator's device."""

    images: Tensor  # (n c H W) in [-1, 1]
    probabilities: Tensor  # (n,) of the requested class, as the classifier sees the image kept
    candidates: Tensor  # (n,) int64, which candidate it was, from 0


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
    """Draws several candidates for each image and keeps the one most probable to be of its class.

    Classifier-based rejection sampling (Razavi et al. 2019, "Generating Diverse High-Fidelity
    Images with VQ-VAE-2", §3.3): better images, and fewer kinds of them, the more candidates.

    Candidate c of image number i is drawn as image number i + c · 2³²: its random stream is its
    own, whatever the batch; candidate 0 is the image that `generator.sample` draws; and more
    candidates only add to those there were. Of equally probable ones the first is kept. No more
    than two batches of candidates are ever held.

    Args:
        generator: of a class-conditional model.
        classifier: from images `(b c H W)` in [-1, 1] to logits `(b k)` over the model's classes;
            a module is used in evaluation mode.
        num_images: n.
        condition: `(n,)` int64 class labels, or class names, or one name for all.
        num_candidates: drawn for each image.
        given_tokens: see `ImageGenerator.sample_tokens`.
        options: how to sample.
        first_image: number of the first image, to draw a long series in several calls.
        progress: show a progress bar, of candidates.

    Raises:
        UserError: if the model has no classes, an argument is out of range, or the classifier does
            not give a number for each class.
    """
    num_classes = generator.conditioning.num_classes
    if num_classes is None:
        raise UserError(
            "rejection sampling keeps what a classifier takes for the requested class, and this "
            "model was not trained on classes."
        )
    if num_candidates < 1:
        raise UserError(f"num_candidates is {num_candidates} and must be at least 1.")
    labels = as_condition(condition, generator.conditioning, num_images)
    assert labels is not None
    options = options or SamplingOptions()
    if options.seed is None:
        options = replace(options, seed=int(torch.randint(2**62, ())))
    batch_size = options.batch_size or min(num_images, BATCH_SIZE)
    options = replace(options, batch_size=batch_size)

    parts = []
    total = num_images * num_candidates
    with tqdm(total=total, unit="image", desc="sampling", disable=not progress) as bar:
        for start in range(0, num_images, batch_size):
            batch = labels[start : start + batch_size]
            given = None if given_tokens is None else given_tokens[start : start + batch_size]
            best: BestSamples | None = None
            for candidate in range(num_candidates):
                number = first_image + start + candidate * NUMBERS_A_CANDIDATE
                images = generator.sample(
                    len(batch), batch, given_tokens=given, options=options, first_image=number
                )
                probabilities = _probabilities(classifier, images, batch, num_classes)
                numbers = torch.full_like(probabilities, candidate, dtype=torch.int64)
                drawn = BestSamples(images, probabilities, numbers)
                best = drawn if best is None else _better(best, drawn)
                bar.update(len(batch))
            parts.append(best)
    return BestSamples(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _probabilities(
    classifier: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, num_classes: int
) -> Tensor:
    """Returns the probability of each image's own class, `(b,)` float32."""
    mode = evaluation_mode(classifier) if isinstance(classifier, nn.Module) else nullcontext()
    with mode:
        logits = classifier(images)
    if logits.shape != (len(images), num_classes):
        raise UserError(
            f"the classifier gives {tuple(logits.shape)} for {len(images)} images, and must give "
            f"a logit for each of the model's {num_classes} classes."
        )
    own = labels.to(logits.device)[:, None]
    probabilities = logits.float().softmax(dim=-1).gather(1, own).squeeze(1)
    if probabilities.isnan().any():
        raise UserError("the classifier's logits are not numbers (NaN).")
    return probabilities.to(images.device)


def _better(first: BestSamples, second: BestSamples) -> BestSamples:
    """Returns the more probable image of each pair, the first of equal ones."""
    take = second.probabilities > first.probabilities  # (b,)
    return BestSamples(
        *(
            torch.where(take.view(-1, *[1] * (new.ndim - 1)), new, old)
            for old, new in zip(first, second, strict=True)
        )
    )
