"""A small image classifier, to ask whether a sample shows the class that was asked for."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from taming.errors import UserError
from taming.serialization import PretrainedModel

__all__ = ["ImageClassifier", "load_classifier"]

GRID_SIDE = 4  # cells of the grid over which features are averaged


class ImageClassifier(PretrainedModel):
    """Convolutions with batch normalisation, each level half as high and twice as wide.

    The last level's features are averaged over the cells of a 4×4 grid, and a linear map of all
    cells gives the logits. Images of another size than `resolution` are resized to it, bilinearly
    with antialiasing.

    Args:
        num_classes: k.
        image_channels: c.
        resolution: (height, width) at which images are looked at; one number for a square.
        base_channels: width of the first level.
        num_levels: levels; each but the last halves the image.
        class_names: in the order of the labels, where they are known.

    Raises:
        UserError: if a size is out of range.
    """

    kind = "classifier"

    def __init__(
        self,
        *,
        num_classes: int,
        image_channels: int,
        resolution: int | Sequence[int],
        base_channels: int = 16,
        num_levels: int = 3,
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        height, width = (resolution, resolution) if isinstance(resolution, int) else resolution
        if num_classes < 2:
            raise UserError(f"a classifier needs 2 classes or more, not {num_classes}.")
        if base_channels < 1 or num_levels < 1 or min(height, width) < 2 ** (num_levels - 1):
            raise UserError(
                f"a classifier of {num_levels} levels, {base_channels} channels wide, cannot look "
                f"at images of {height}×{width}: each level halves them."
            )
        if class_names is not None and len(class_names) != num_classes:
            raise UserError(f"there are {len(class_names)} class names for {num_classes} classes.")
        self.num_classes = num_classes
        self.image_channels = image_channels
        self.resolution = (height, width)
        self.class_names = None if class_names is None else tuple(class_names)
        self.config: dict[str, Any] = {
            "num_classes": num_classes,
            "image_channels": image_channels,
            "resolution": [height, width],
            "base_channels": base_channels,
            "num_levels": num_levels,
            "class_names": None if class_names is None else list(class_names),
        }
        widths = [image_channels, *(base_channels * 2**level for level in range(num_levels))]
        self.levels = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(narrow, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()
            )
            for narrow, wide in pairwise(widths)
        )
        self.head = nn.Linear(widths[-1] * GRID_SIDE**2, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """`(b c H W)` in [-1, 1] to logits `(b k)`.

        Raises:
            UserError: if the images have other channels.
        """
        if images.ndim != 4 or images.shape[1] != self.image_channels:
            raise UserError(
                f"the classifier takes images (b {self.image_channels} H W), got "
                f"{tuple(images.shape)}."
            )
        x = images
        if x.shape[2:] != self.resolution:
            x = F.interpolate(x, self.resolution, mode="bilinear", antialias=True)
        for number, level in enumerate(self.levels):
            if number > 0:
                x = F.max_pool2d(x, 2)
            x = level(x)  # (b d h w)
        return self.head(F.adaptive_avg_pool2d(x, GRID_SIDE).flatten(1))


def load_classifier(path: str | Path) -> ImageClassifier:
    """Loads the classifier in a model directory, in evaluation mode.

    It judges for `taming.generation.sample_best`, too: called with images it gives logits.

    Raises:
        MissingPathError: if the path does not exist.
        UserError: if what is there is not a classifier.
    """
    return ImageClassifier.from_pretrained(path)
