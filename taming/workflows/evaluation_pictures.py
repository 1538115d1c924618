"""Pictures of an evaluation: samples by class, best and worst reconstructions."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from taming.data import ImageDataset
from taming.evaluation import MeasuredValidation
from taming.pictures import class_grid, pixel_grid, to_uint8
from taming.vqgan import VQGAN

__all__ = ["Shown", "best_and_worst", "first_of_each", "sample_grid"]

SHOWN_A_CLASS, SHOWN_CLASSES, SHOWN_WITHOUT_CLASSES = 10, 12, 100
NUM_EXTREMES = 8  # of the best, and of the worst


class Shown(NamedTuple):
    """A sample in the grid."""

    number: int
    label: int  # the requested class; -1: none
    picture: np.ndarray
    prediction: int | None  # of the classifier


def sample_grid(pictures: Sequence[Shown], class_names: Sequence[str]) -> Image.Image:
    """Lays out the pictures, by class where they have one."""
    if pictures[0].label < 0:
        return pixel_grid(np.stack([one.picture for one in pictures]), min_side=96)
    shown: dict[int, list[tuple[np.ndarray, int | None]]] = defaultdict(list)
    for one in pictures:
        shown[one.label].append((one.picture, one.prediction))
    return class_grid(shown, class_names)


def first_of_each(pictures: Sequence[Shown]) -> list[Shown]:
    """Keeps the pictures that are shown: the first of the first classes."""
    kept: dict[int, list[Shown]] = defaultdict(list)
    for one in pictures:
        most = SHOWN_WITHOUT_CLASSES if one.label < 0 else SHOWN_A_CLASS
        if (one.label in kept or len(kept) < SHOWN_CLASSES) and len(kept[one.label]) < most:
            kept[one.label].append(one)
    return list(chain.from_iterable(kept.values()))


@torch.no_grad()
def best_and_worst(
    tokenizer: VQGAN, found: MeasuredValidation, dataset: ImageDataset, numbers: Sequence[int]
) -> Image.Image:
    """Shows the best reconstructions, then the worst, each beside its image, by PSNR."""
    pictures, captions = [], []
    for place, rows in zip(("best", "worst"), found.extremes(NUM_EXTREMES), strict=True):
        for row in rows:
            image = dataset[numbers[row]]["images"][None]
            reconstruction = tokenizer.decode(tokenizer.encode(image.to(tokenizer.device)))
            pictures += [to_uint8(image)[0], to_uint8(reconstruction)[0]]
            captions += [place, f"{found.quality['psnr'][row]:.1f} dB"]
    return pixel_grid(np.stack(pictures), 8, captions, min_side=96)
