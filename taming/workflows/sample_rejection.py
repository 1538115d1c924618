"""What can be wrong with rejection sampling, found before anything takes time."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from taming.contexts import evaluation_mode
from taming.errors import UserError
from taming.generation import ImageGenerator
from taming.workflows.class_names import class_difference
from taming.workflows.sample_settings import SampleSettings

__all__ = ["check_rejection"]


def check_rejection(
    generator: ImageGenerator,
    settings: SampleSettings,
    classifier: Callable[[Tensor], Tensor],
) -> None:
    """Raises a `UserError` unless the classifier can choose among samples of the size drawn.

    Args:
        generator: see `sample_images`.
        settings: likewise.
        classifier: is shown one image, a grey one.
    """
    conditioning = generator.conditioning
    num_classes = conditioning.num_classes
    if num_classes is None:
        raise UserError(
            "rejection.classifier chooses the candidate that looks most like the asked-for class, "
            "and this model was not trained on classes: leave it out."
        )
    if settings.greedy:
        raise UserError(
            "greedy=true draws the same image each time, so that rejection.classifier has nothing "
            "to choose from: leave one of them out."
        )
    names = getattr(classifier, "class_names", None)
    known = conditioning.class_names
    if names is not None and known is not None:
        difference = class_difference("rejection.classifier: its", names, "this model's", known)
        if difference is not None:
            raise UserError(f"{difference}: they must be the same, in the same order.")
    tokenizer = generator.require_tokenizer()
    rows, columns = settings.large_grid_size or generator.grid_size
    height, width = rows * tokenizer.downsample_factor, columns * tokenizer.downsample_factor
    images = torch.zeros(1, tokenizer.image_channels, height, width, device=generator.device)
    mode = evaluation_mode(classifier) if isinstance(classifier, nn.Module) else nullcontext()
    try:
        with torch.no_grad(), mode:
            logits = classifier(images)
    except Exception as error:  # it is the user's own
        name = getattr(classifier, "__name__", type(classifier).__name__)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"rejection.classifier: {name} cannot take an image of {height}×{width} pixels, the "
            f"size that is drawn, (1, {tokenizer.image_channels}, {height}, {width}): {reason}"
        ) from error
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (1, num_classes):
        raise UserError(
            f"rejection.classifier gives {shape} for an image, and this model has "
            f"{num_classes} classes: it must give (1, {num_classes}), a logit for each."
        )
