"""Conditions as ids for the transformer: a prefix or a context."""

from taming.conditioning.base import (
    Condition,
    Conditioning,
    Prompt,
    Unconditional,
    conditioning_from_config,
)
from taming.conditioning.class_label import ClassLabel, class_difference
from taming.conditioning.image import ImageCondition

__all__ = [
    "ClassLabel",
    "Condition",
    "Conditioning",
    "ImageCondition",
    "Prompt",
    "Unconditional",
    "class_difference",
    "conditioning_from_config",
]
