"""Discriminators: images to scores."""

from taming.discriminators.patch import PatchDiscriminator, frozen_statistics

__all__ = ["PatchDiscriminator", "frozen_statistics"]
