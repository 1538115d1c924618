"""Training the small classifier that judges samples, on real images."""

import math
import sys
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

from taming.data import EndlessBatches, ImageDataset
from taming.errors import UserError
from taming.evaluation import ImageClassifier

__all__ = ["ClassifierTraining", "new_classifier", "train_classifier"]

ENOUGH_STEPS = 100  # that few images are given too, however often they come


@dataclass(frozen=True)
class ClassifierTraining:
    """How a classifier is trained.

    Attributes:
        num_steps: most batches; with `batch_size` it bounds the time, whatever the number of
            images.
        max_epochs: passes over the images after which few of them are seen enough; of very few,
            100 steps are taken nevertheless.
        batch_size: images a step.
        learning_rate: the highest; it rises from a 25th of it for three tenths of the steps, then
            falls to nothing (Smith and Topin 2018, "Super-Convergence").
        weight_decay: of AdamW.
        base_channels: width of the classifier's first level.
        num_levels: its levels.
        max_side: pixels; larger images are looked at smaller, their aspect kept.
        seed: of the initialisation, the order and the augmentation.

    Raises:
        UserError: for values out of range.
    """

    num_steps: int = 1000
    max_epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 5e-3
    weight_decay: float = 1e-2
    base_channels: int = 16
    num_levels: int = 3
    max_side: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"num_steps": 1, "max_epochs": 1, "batch_size": 2, "max_side": 8, "seed": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < smallest:
                raise UserError(
                    f"classifier_training.{name} is {value}: give a whole number, {smallest} or "
                    "more."
                )
        if self.learning_rate <= 0 or self.weight_decay < 0:
            raise UserError(
                f"classifier_training: learning_rate {self.learning_rate} must be more than 0 and "
                f"weight_decay {self.weight_decay} not negative."
            )

    def steps_for(self, num_images: int) -> int:
        """Batches that are trained on, of so many images."""
        enough = math.ceil(self.max_epochs * num_images / self.batch_size)
        return min(self.num_steps, max(enough, ENOUGH_STEPS))


def train_classifier(
    dataset: ImageDataset,
    settings: ClassifierTraining,
    *,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> ImageClassifier:
    """Trains a classifier on the images of a data set, with the augmentation of their transform.

    The cross-entropy of a batch is minimised with AdamW. PyTorch's global random state is left as
    it was.

    Args:
        dataset: the training images, with classes.
        settings: see there.
        device: where to train.
        num_workers: processes that load images.

    Returns:
        The classifier, in evaluation mode, on `device`.

    Raises:
        UserError: if the images have fewer than two classes, or are too small for the network.
    """
    classifier = new_classifier(dataset, settings).to(device)
    num_steps = settings.steps_for(len(dataset))
    optimizer = torch.optim.AdamW(
        classifier.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=num_steps
    )
    loader = DataLoader(
        dataset,
        batch_sampler=EndlessBatches(len(dataset), settings.batch_size, seed=settings.seed),
        num_workers=num_workers,
        generator=torch.Generator(),  # its own: nothing is drawn from PyTorch's global state
    )
    batches = islice(loader, num_steps)
    bar = tqdm(
        batches,
        total=num_steps,
        unit="step",
        desc="training the classifier",
        file=sys.stderr,
        mininterval=1,
    )
    for batch in bar:
        loss = F.cross_entropy(classifier(batch["images"].to(device)), batch["labels"].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return classifier.eval()


def new_classifier(dataset: ImageDataset, settings: ClassifierTraining) -> ImageClassifier:
    """The classifier as `train_classifier` begins with it; what that cannot train is said."""
    if dataset.num_classes is None:
        raise UserError(f"{dataset.source.description} has no classes to train a classifier on.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return ImageClassifier(
            num_classes=dataset.num_classes,
            image_channels=dataset.channels,
            resolution=_looked_at(dataset.resolution, settings.max_side),
            base_channels=settings.base_channels,
            num_levels=settings.num_levels,
            class_names=dataset.class_names,
        )


def _looked_at(resolution: tuple[int, int], max_side: int) -> tuple[int, int]:
    """(height, width) of at most `max_side`, of the same aspect."""
    height, width = resolution
    scale = min(1.0, max_side / max(height, width))
    return round(height * scale), round(width * scale)
