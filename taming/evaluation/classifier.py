"""A small image classifier, which checks whether a sample shows the requested class."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn
from tqdm import tqdm

from taming.runtime.errors import UserError
from taming.serialization import PretrainedModel
from taming.tokenizer import height_and_width

__all__ = ["ClassifierTraining", "ImageClassifier", "train_classifier"]

GRID_SIDE = 4  # the head sees the features averaged over 4×4 cells
MIN_STEPS = 100  # a training on few images takes no fewer


class ImageClassifier(PretrainedModel):
    """Convolutions with batch normalisation, each level half as high and twice as wide.

    The features of the last level are averaged over a 4×4 grid of cells. A linear layer maps all
    cells to logits.

    Args:
        num_classes: number of logits.
        image_channels: 3 or 1.
        resolution: (height, width), or one number for a square. Images of another size are resized
            to it, bilinearly with antialiasing.
        base_channels: width of the first level.
        num_levels: number of convolutions.
        class_names: in the order of the labels.
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
        self.num_classes, self.image_channels = num_classes, image_channels
        self.resolution = height_and_width(resolution)
        self.class_names = None if class_names is None else tuple(class_names)
        self.config: dict[str, Any] = {
            "num_classes": num_classes,
            "image_channels": image_channels,
            "resolution": list(self.resolution),
            "base_channels": base_channels,
            "num_levels": num_levels,
            "class_names": None if class_names is None else list(class_names),
        }
        self.levels = nn.ModuleList()
        width = image_channels
        for level in range(num_levels):
            narrow, width = width, base_channels * 2**level
            convolution = nn.Conv2d(narrow, width, 3, padding=1, bias=False)
            self.levels.append(nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU()))
        self.head = nn.Linear(width * GRID_SIDE**2, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Maps `(b c H W)` in [-1, 1] to logits `(b k)`."""
        x = images
        if x.shape[2:] != self.resolution:
            x = F.interpolate(x, self.resolution, mode="bilinear", antialias=True)
        for number, level in enumerate(self.levels):
            if number > 0:
                x = F.max_pool2d(x, 2)
            x = level(x)  # (b d h w)
        return self.head(F.adaptive_avg_pool2d(x, GRID_SIDE).flatten(1))


@dataclass(frozen=True)
class ClassifierTraining:
    """Settings of a classifier and its training.

    Attributes:
        num_steps: maximum number of batches.
        max_epochs: maximum number of passes over the images, but at least 100 steps.
        batch_size: images per step.
        learning_rate: peak of the one-cycle schedule (Smith and Topin 2018, "Super-Convergence").
            The rate rises from 1/25 of it during 30% of the steps and then falls to almost zero.
        weight_decay: weight decay of AdamW.
        base_channels: width of the classifier's first level.
        num_levels: levels of the classifier.
        max_side: pixels; larger images are classified at a smaller size.
        seed: seed of the initialisation, the order of the images and the augmentation.
    """

    num_steps: Annotated[int, Ge(1)] = 1000
    max_epochs: Annotated[int, Ge(1)] = 100
    batch_size: Annotated[int, Ge(2)] = 128
    learning_rate: Annotated[float, Gt(0)] = 5e-3
    weight_decay: Annotated[float, Ge(0)] = 1e-2
    base_channels: Annotated[int, Ge(1)] = 16
    num_levels: Annotated[int, Ge(1)] = 3
    max_side: Annotated[int, Ge(8)] = 64
    seed: Annotated[int, Ge(0)] = 0

    def steps_for(self, num_images: int) -> int:
        """Returns the number of steps for training on `num_images` images."""
        limit = math.ceil(self.max_epochs * num_images / self.batch_size)
        return min(self.num_steps, max(limit, MIN_STEPS))

    def new_classifier(
        self, resolution: tuple[int, int], image_channels: int, class_names: Sequence[str]
    ) -> ImageClassifier:
        """Returns an untrained classifier. PyTorch's global random state does not change."""
        if len(class_names) < 2:
            raise UserError("A classifier needs data with 2 classes or more.")
        height, width = resolution
        scale = min(1.0, self.max_side / max(height, width))
        if scale * min(height, width) < 2 ** (self.num_levels - 1):
            raise UserError(
                f"classifier_training.num_levels={self.num_levels} halves images of "
                f"{height}×{width} too often. Give a smaller number."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return ImageClassifier(
                num_classes=len(class_names),
                image_channels=image_channels,
                resolution=(round(height * scale), round(width * scale)),
                base_channels=self.base_channels,
                num_levels=self.num_levels,
                class_names=class_names,
            )


def train_classifier(
    classifier: ImageClassifier,
    batches: Iterable[dict[str, Tensor]],
    settings: ClassifierTraining,
    num_steps: int,
) -> ImageClassifier:
    """Minimises the cross-entropy with AdamW, and returns the classifier in evaluation mode.

    Each of the `num_steps` batches or more holds `images` `(b c H W)` in [-1, 1] and `labels`
    `(b,)`.
    """
    optimizer = torch.optim.AdamW(
        classifier.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=num_steps
    )
    device = classifier.head.weight.device
    description = "training the classifier"
    steps = tqdm(islice(batches, num_steps), description, num_steps, unit="step", mininterval=1)
    for batch in steps:
        loss = F.cross_entropy(classifier(batch["images"].to(device)), batch["labels"].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return classifier.eval()
