"""Random augmentation of what a discriminator sees.

Zhao et al. 2020, "Differentiable Augmentation for Data-Efficient GAN Training": real and generated
images are augmented alike whenever the discriminator looks at them, and the generator's gradient
flows through the augmentation. A discriminator can then not learn a small data set by heart, and
the generator does not learn the augmentation. Strengths are the paper's (§4, "DiffAugment").
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

__all__ = ["Augmentation", "DifferentiableAugmentation"]

Augmentation = Literal["color", "translation", "cutout"]

TRANSLATION_RATIO = 1 / 8  # of the image's sides
CUTOUT_RATIO = 1 / 2


class DifferentiableAugmentation(nn.Module):
    """Applies a policy's augmentations in turn, with new random numbers for every image and call.

    - `"color"`: brightness ± 0.5, saturation × [0, 2) (images of one channel have none), contrast
      × [0.5, 1.5); the result is not clamped.
    - `"translation"`: by up to an eighth of the sides; what moves in is 0, mid-grey.
    - `"cutout"`: a rectangle of half the sides, its centre anywhere in the image, becomes 0.

    The random numbers are torch's, of the images' device.

    Args:
        policy: names of augmentations; an empty one or None changes nothing.
    """

    def __init__(self, policy: Sequence[Augmentation] | None = None) -> None:
        super().__init__()
        self.policy = tuple(policy or ())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Augments `(b c H W)` in [-1, 1]."""
        for name in self.policy:
            images = AUGMENTATIONS[name](images)
        return images


def _color(images: torch.Tensor) -> torch.Tensor:
    images = images + _uniform(images, -0.5, 0.5)
    if images.shape[1] > 1:
        grey = images.mean(1, keepdim=True)
        images = grey + _uniform(images, 0.0, 2.0) * (images - grey)
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + _uniform(images, 0.5, 1.5) * (images - mean)


def _translation(images: torch.Tensor) -> torch.Tensor:
    for dim in (2, 3):
        side = images.shape[dim]
        most = round(side * TRANSLATION_RATIO)
        source = _positions(images, dim) - _integers(images, -most, most)  # (b 1 H 1), (b 1 1 W)
        inside = (source >= 0) & (source < side)
        source = source.clamp(0, side - 1).expand(images.shape)
        images = images.gather(dim, source) * inside
    return images


def _cutout(images: torch.Tensor) -> torch.Tensor:
    cut = torch.ones((), dtype=torch.bool, device=images.device)
    for dim in (2, 3):
        side = images.shape[dim]
        length = round(side * CUTOUT_RATIO)
        first = _integers(images, 0, side - length % 2) - length // 2
        positions = _positions(images, dim)
        cut = cut & (positions >= first) & (positions < first + length)
    return images * ~cut  # (b 1 H W)


def _uniform(images: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Draws `(b 1 1 1)` from [low, high)."""
    return images.new_empty(len(images), 1, 1, 1).uniform_(low, high)


def _integers(images: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Draws `(b 1 1 1)` int64 from `low` to `high`, both included."""
    return torch.randint(low, high + 1, (len(images), 1, 1, 1), device=images.device)


def _positions(images: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns 0, 1, … along `dim`, of size 1 along the others."""
    shape = [1, 1, 1, 1]
    shape[dim] = images.shape[dim]
    return torch.arange(images.shape[dim], device=images.device).view(shape)


AUGMENTATIONS: dict[Augmentation, Callable[[torch.Tensor], torch.Tensor]] = {
    "color": _color,
    "translation": _translation,
    "cutout": _cutout,
}
