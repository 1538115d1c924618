"""Pictures of an evaluation: samples by class, best and worst reconstructions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from PIL import Image

from taming.data import ImageDataset
from taming.evaluation import JudgedImages, MeasuredValidation
from taming.pictures import class_grid, pixel_grid, to_uint8
from taming.tokenizer import VQGAN

__all__ = ["best_and_worst", "sample_grid", "shown_samples"]

SHOWN_A_CLASS, SHOWN_CLASSES, SHOWN_WITHOUT_CLASSES = 10, 12, 100
NUM_EXTREMES = 8  # of the best, and of the worst


def shown_samples(labels: Sequence[int | None]) -> list[int]:
    """Chooses the samples that are shown, by their classes: the first of the first classes."""
    shown: dict[int | None, list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        most = SHOWN_WITHOUT_CLASSES if label is None else SHOWN_A_CLASS
        if (label in shown or len(shown) < SHOWN_CLASSES) and len(shown[label]) < most:
            shown[label].append(number)
    return list(chain.from_iterable(shown.values()))


def sample_grid(
    pictures: Mapping[int, np.ndarray], judged: JudgedImages, class_names: Sequence[str]
) -> Image.Image:
    """Lays out some of the samples that were judged, by class where they have one.

    `pictures` are uint8 `(H W 3)`, by the sample's number.
    """
    if judged.labels is None:
        return pixel_grid(np.stack(list(pictures.values())), min_side=96)
    numbers = list(pictures)
    labels, predictions = judged.labels[numbers].tolist(), None
    if judged.logits is not None:
        predictions = judged.logits.argmax(1)[numbers].tolist()
    return class_grid(list(pictures.values()), labels, predictions, class_names)


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
