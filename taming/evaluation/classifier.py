"""A small image classifier, to check whether a sample shows the requested class."""

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

GRID_SIDE = 4  # cells of the grid over which features are averaged
MIN_STEPS = 100  # of a training, however few images there are


class ImageClassifier(PretrainedModel):
    """Convolutions with batch normalisation, each level half as high and twice as wide.

    The last level's features are averaged over the cells of a 4×4 grid, and a linear map of all
    cells gives the logits. Images of another size than `resolution`, (height, width) or one number
    for a square, are resized to it, bilinearly with antialiasing. `class_names` are in the order of
    the labels.
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
        self.num_classes = num_classes
        self.image_channels = image_channels
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
    """Settings of a classifier's training."""

    num_steps: Annotated[int, Ge(1)] = 1000  # most batches; with `batch_size` it bounds the time
    max_epochs: Annotated[int, Ge(1)] = 100  # most passes over the images, but 100 steps at least
    batch_size: Annotated[int, Ge(2)] = 128
    # the highest; it rises from a 25th of it for three tenths of the steps, then falls to nothing
    # (Smith and Topin 2018, "Super-Convergence")
    learning_rate: Annotated[float, Gt(0)] = 5e-3
    weight_decay: Annotated[float, Ge(0)] = 1e-2  # of AdamW
    base_channels: Annotated[int, Ge(1)] = 16  # width of the classifier's first level
    num_levels: Annotated[int, Ge(1)] = 3
    max_side: Annotated[int, Ge(8)] = 64  # pixels; larger images are classified at a smaller size
    seed: Annotated[int, Ge(0)] = 0  # of the initialisation, the order and the augmentation

    def steps_for(self, num_images: int) -> int:
        """Returns the number of batches for this number of images."""
        limit = math.ceil(self.max_epochs * num_images / self.batch_size)
        return min(self.num_steps, max(limit, MIN_STEPS))

    def new_classifier(
        self, resolution: tuple[int, int], image_channels: int, class_names: Sequence[str]
    ) -> ImageClassifier:
        """Returns an untrained classifier; PyTorch's global random state is left as it was."""
        if len(class_names) < 2:
            raise UserError("a classifier needs 2 classes or more: give data of classes.")
        height, width = resolution
        scale = min(1.0, self.max_side / max(height, width))
        if scale * min(height, width) < 2 ** (self.num_levels - 1):
            raise UserError(
                f"classifier_training.num_levels={self.num_levels} halves images of "
                f"{height}×{width} too often: give fewer."
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
    """Minimises the cross-entropy with AdamW, where the classifier is; returns it in eval mode.

    `batches` are `images` `(b c H W)` in [-1, 1] and `labels` `(b,)`, `num_steps` or more.
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
