"""Random augmentation of the discriminator's inputs.

Zhao et al. 2020, "Differentiable Augmentation for Data-Efficient GAN Training". Real and generated
images are augmented alike whenever the discriminator sees them, and the generator's gradient flows
through the augmentation. The discriminator then cannot memorise a small dataset, and the generator
does not learn to produce augmented images. The strengths are the paper's (section 4).
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = ["Augmentation", "DifferentiableAugmentation"]

Augmentation = Literal["color", "translation", "cutout"]

TRANSLATION_RATIO = 1 / 8  # of the image's sides
CUTOUT_RATIO = 1 / 2


class DifferentiableAugmentation(nn.Module):
    """Applies augmentations in order, with new random numbers for every image and call.

    - `"color"`: brightness ± 0.5, saturation × [0, 2) (except for images of one channel), contrast
      × [0.5, 1.5), without clamping.
    - `"translation"`: by up to an eighth of the sides, filled with 0 (mid-grey).
    - `"cutout"`: sets a rectangle of half the sides to 0; its centre lies anywhere in the image.

    The random numbers come from torch's generator of the images' device.

    Args:
        policy: names of augmentations; None or an empty policy changes nothing.
    """

    def __init__(self, policy: Sequence[Augmentation] | None = None) -> None:
        super().__init__()
        self.policy = tuple(policy or ())

    def forward(self, images: Tensor) -> Tensor:
        """Augments `(b c H W)` in [-1, 1]."""
        for name in self.policy:
            images = AUGMENTATIONS[name](images)
        return images


def _color(images: Tensor) -> Tensor:
    images = images + _uniform(images, -0.5, 0.5)
    if images.shape[1] > 1:
        grey = images.mean(1, keepdim=True)
        images = grey + _uniform(images, 0.0, 2.0) * (images - grey)
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + _uniform(images, 0.5, 1.5) * (images - mean)


def _translation(images: Tensor) -> Tensor:
    for dim in (2, 3):
        side = images.shape[dim]
        most = round(side * TRANSLATION_RATIO)
        source = _positions(images, dim) - _integers(images, -most, most)  # (b 1 H 1), (b 1 1 W)
        inside = (source >= 0) & (source < side)
        source = source.clamp(0, side - 1).expand(images.shape)
        images = images.gather(dim, source) * inside
    return images


def _cutout(images: Tensor) -> Tensor:
    cut = torch.ones((), dtype=torch.bool, device=images.device)
    for dim in (2, 3):
        side = images.shape[dim]
        length = round(side * CUTOUT_RATIO)
        first = _integers(images, 0, side - length % 2) - length // 2
        positions = _positions(images, dim)
        cut = cut & (positions >= first) & (positions < first + length)
    return images * ~cut  # (b 1 H W)


def _uniform(images: Tensor, low: float, high: float) -> Tensor:
    """Draws `(b 1 1 1)` from [low, high)."""
    return images.new_empty(len(images), 1, 1, 1).uniform_(low, high)


def _integers(images: Tensor, low: int, high: int) -> Tensor:
    """Draws `(b 1 1 1)` int64 from `low` to `high`, both included."""
    return torch.randint(low, high + 1, (len(images), 1, 1, 1), device=images.device)


def _positions(images: Tensor, dim: int) -> Tensor:
    """Returns 0, 1, … along `dim`, of size 1 along the others."""
    shape = [1, 1, 1, 1]
    shape[dim] = images.shape[dim]
    return torch.arange(images.shape[dim], device=images.device).view(shape)


AUGMENTATIONS: dict[Augmentation, Callable[[Tensor], Tensor]] = {
    "color": _color,
    "translation": _translation,
    "cutout": _cutout,
}
