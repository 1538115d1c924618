"""Stage 1 as stage 2 sees it: the tokenizer interface, the VQGAN and cells of label maps."""

from taming.tokenizer.cells import CellClasses
from taming.tokenizer.interface import Tokenizer, height_and_width
from taming.tokenizer.vqgan import VQGAN, VQGANOutput

__all__ = ["VQGAN", "CellClasses", "Tokenizer", "VQGANOutput", "height_and_width"]
