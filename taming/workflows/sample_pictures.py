"""Samples as a picture, beside what they were made from."""

import math

import numpy as np
from PIL import Image
from torch import Tensor

from taming.conditioning import ImageCondition
from taming.generation import ImageGenerator
from taming.pictures import as_palette, pixel_grid, side_by_side, to_uint8

__all__ = ["MAX_GRID_IMAGES", "beside", "sample_grid", "sample_palette"]

MAX_GRID_IMAGES = 100


def beside(
    generator: ImageGenerator, condition: Tensor | None, given: Tensor | None, samples: np.ndarray
) -> np.ndarray:
    """What each sample was made from and the sample, `(b k H W 3)`, for b samples `(b H W 3)`."""
    columns = [samples]
    if given is not None:
        columns.insert(0, to_uint8(given, sample_palette(generator)))
    if condition is None or condition.ndim != 4:
        return side_by_side(columns, None)
    return side_by_side(columns, condition, _condition_palette(generator))


def sample_grid(
    shown: np.ndarray, class_names: list[str] | None, num_columns: int | None
) -> Image.Image:
    """The first images.

    Args:
        shown: `(n k H W 3)`: k pictures side by side for each image, as `beside` gives them.
        class_names: to be shown above the samples; None for no classes.
        num_columns: images a row, where they are alone.
    """
    width = shown.shape[1]
    shown = shown[: MAX_GRID_IMAGES // width]
    if width > 1:
        num_columns = width * math.ceil(math.sqrt(len(shown) / width))
    captions = None
    if class_names is not None:
        captions = [text for name in class_names for text in [""] * (width - 1) + [name]]
    return pixel_grid(shown.reshape(-1, *shown.shape[2:]), num_columns, captions)


def sample_palette(generator: ImageGenerator) -> np.ndarray | None:
    """Colours of samples that are label maps; None for pictures."""
    tokenizer = generator.tokenizer
    assert tokenizer is not None
    return as_palette(None, tokenizer.image_channels) if tokenizer.label_maps else None


def _condition_palette(generator: ImageGenerator) -> np.ndarray | None:
    tokenizer, conditioning = generator.condition_tokenizer, generator.conditioning
    assert tokenizer is not None
    assert isinstance(conditioning, ImageCondition)
    if not tokenizer.label_maps:
        return None
    return as_palette(conditioning.palette, tokenizer.image_channels)
