"""What the user asks for, as prefix ids of the transformer."""

from taming.conditioning.base import Conditioning
from taming.conditioning.cells import CellClasses
from taming.conditioning.class_label import ClassLabel
from taming.conditioning.kinds import conditioning_from_config
from taming.conditioning.unconditional import Unconditional

__all__ = ["CellClasses", "ClassLabel", "Conditioning", "Unconditional", "conditioning_from_config"]
