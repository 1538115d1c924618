"""Discriminators: images to scores; and what changes the images on their way there."""

from taming.discriminators.actnorm import ActNorm
from taming.discriminators.augmentation import DifferentiableAugmentation
from taming.discriminators.patch import BlurPool, PatchDiscriminator, frozen_statistics

__all__ = [
    "ActNorm",
    "BlurPool",
    "DifferentiableAugmentation",
    "PatchDiscriminator",
    "frozen_statistics",
]
