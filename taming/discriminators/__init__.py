"""The patch discriminator, which scores images, and the augmentation of its inputs."""

from taming.discriminators.actnorm import ActNorm
from taming.discriminators.augmentation import Augmentation, DifferentiableAugmentation
from taming.discriminators.patch import BlurPool, PatchDiscriminator, frozen

__all__ = [
    "ActNorm",
    "Augmentation",
    "BlurPool",
    "DifferentiableAugmentation",
    "PatchDiscriminator",
    "frozen",
]
