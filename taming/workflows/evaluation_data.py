"""The images of an evaluation: checked, batched, and their features kept for the next one."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from taming.conditioning import ImageCondition, class_difference
from taming.data import ImageDataset, LabelMapReader
from taming.data.batches import make_loader
from taming.data.module import ImageDataModule
from taming.errors import UserError
from taming.evaluation import FeatureNetwork, ImageClassifier, JudgedImages, Judges, in_proportion
from taming.generation import ImageGenerator
from taming.ranks import dealt, largest_share, on_first_rank, rank
from taming.vqgan import VQGAN

__all__ = [
    "FeatureCache",
    "RealImages",
    "check_classifier",
    "check_data",
    "chosen",
    "dealt_batches",
    "judge",
]


def check_data(model: ImageGenerator | VQGAN, data: ImageDataModule) -> VQGAN:
    """Returns the model's tokenizer; refuses data that do not suit the model."""
    tokenizer = model if isinstance(model, VQGAN) else model.require_tokenizer()
    tokenizer.check_kind(data.label_maps, data.channels)
    if isinstance(model, VQGAN):
        return tokenizer
    if data.resolution != model.resolution:
        height, width = model.resolution
        raise UserError(
            f"the images are {data.resolution[0]}×{data.resolution[1]}, and the generator's "
            f"{height}×{width}: give data.resolution=[{height},{width}], or leave it out."
        )
    difference = None
    if isinstance(model.conditioning, ImageCondition):
        difference = _condition_difference(model, model.conditioning, data)
    elif model.conditioning.num_classes is not None:
        difference = class_difference(data, model.conditioning)
    if difference is not None:
        raise UserError(f"the data are not like those of the generator's training: {difference}.")
    return tokenizer


def _condition_difference(
    generator: ImageGenerator, conditioning: ImageCondition, data: ImageDataModule
) -> str | None:
    """Says how the data's conditions differ from those of the generator's training, if they do."""
    reader, tokenizer = data.condition_reader, generator.require_condition_tokenizer()
    if reader is None:
        return "they have no condition images: use data=paired"
    tokenizer.check_kind(reader.label_maps, reader.channels)
    if not reader.label_maps:
        return None
    reading = conditioning.unlabelled, conditioning.unlabelled_class
    if repr(reader) == repr(LabelMapReader(tokenizer.image_channels, *reading)):  # no palette
        return None
    value, its_class = ("null" if number is None else str(number) for number in reading)
    return (
        f"their label maps would be read in another way: set data.label_map.unlabelled={value} "
        f"data.label_map.unlabelled_class={its_class}"
    )


def check_classifier(classifier: ImageClassifier, data: ImageDataModule) -> None:
    """Refuses a classifier whose classes or channels are not the data's."""
    difference = class_difference(classifier, data)
    if classifier.image_channels != data.channels:
        difference = f"it takes images of {classifier.image_channels} channels"
    if difference is not None:
        raise UserError(
            f"the classifier does not fit the data: {difference}; classifier=null trains another."
        )


def chosen(
    dataset: ImageDataset, most: int | None, seed: int | None, repeat: bool = False
) -> Sequence[int]:
    """Returns the numbers of the images to take: all, or `most` in proportion to their classes.

    With `repeat` there may be more than the data set has.
    """
    numbers = range(len(dataset))
    if most is None or (most >= len(dataset) and not repeat):
        return numbers
    return in_proportion([dataset.label(number) for number in numbers], most, seed)


def dealt_batches(
    data: ImageDataModule, dataset: ImageDataset, numbers: Sequence[int], batch_size: int, name: str
) -> Iterable[dict[str, Any]]:
    """Returns this rank's batches of the images, not augmented, under a progress bar."""
    size = min(batch_size, largest_share(len(numbers)))
    batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    loader = make_loader(dataset, data.num_workers_for(dataset), batch_sampler=list(dealt(batches)))
    return tqdm(loader, name, unit="batch", mininterval=1, disable=rank() > 0)


class FeatureCache:
    """Features of real images, kept in a directory for the next evaluation with the same contract.

    A file is named after what decides its contents: the images, which of them, their transform, the
    network and its weights. Without a directory nothing is kept.
    """

    def __init__(self, directory: str | Path | None, network: FeatureNetwork | None) -> None:
        self._directory = None if directory is None else Path(directory).expanduser()
        self._network = network

    def find(self, dataset: ImageDataset, numbers: Sequence[int]) -> tuple[Path | None, bool]:
        """Returns the file of these images, None where none is kept, and whether it exists."""
        if self._network is None or self._directory is None:
            return None, False
        directory = self._directory

        def look() -> tuple[Path, bool]:
            assert self._network is not None
            terms = dataset.fingerprint(), list(numbers), self._network.description
            name = hashlib.sha256(repr((*terms, self._network.digest)).encode()).hexdigest()[:16]
            path = directory / f"{name}.safetensors"
            return path, path.is_file()

        return on_first_rank(look)

    @staticmethod
    def load(path: Path, judged: JudgedImages) -> None:
        """Fills in the features of images that were judged without; first rank only."""
        if rank() > 0:
            return
        saved = load_file(path)
        judged.features = saved["features"]
        judged.digests = [bytes(row.tolist()) for row in saved["digests"]]
        judged.labels = saved.get("labels")
        judged.num_images = len(judged.digests)

    @staticmethod
    def save(path: Path, judged: JudgedImages) -> None:
        """Saves the features of images, and what they are of; first rank only."""
        if rank() > 0 or judged.features is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        digests = torch.tensor([list(digest) for digest in judged.digests], dtype=torch.uint8)
        unfinished = path.with_suffix(".unfinished")
        tensors = {"features": judged.features, "digests": digests}
        if judged.labels is not None:
            tensors["labels"] = judged.labels
        save_file(tensors, unfinished)
        unfinished.replace(path)


@dataclass(frozen=True)
class RealImages:
    """The real images of an evaluation, which samples are compared with.

    `val` and `train` are whole on the first process.
    """

    data: ImageDataModule
    judges: Judges
    numbers: Sequence[int]  # of the validation images
    val: JudgedImages
    train: JudgedImages | None  # their features alone; None without features
    batch_size: int
    seed: int | None

    def features(self, judged: JudgedImages) -> Tensor:
        """Returns the features of images, where they are compared."""
        assert judged.features is not None
        return judged.features.to(self.judges.device)

    def judge_val(self, judges: Judges, name: str) -> JudgedImages:
        """Returns the validation images as other judges see them."""
        dataset = self.data.val_dataset
        return judge(judges, self.data, dataset, self.numbers, self.batch_size, name)


def judge(
    judges: Judges,
    data: ImageDataModule,
    dataset: ImageDataset,
    numbers: Sequence[int],
    batch_size: int,
    name: str,
    cache: FeatureCache | None = None,
) -> JudgedImages:
    """Returns images as judged, whole on the first process; their features may be in the cache."""
    path, known = cache.find(dataset, numbers) if cache else (None, False)
    if known:
        judges = replace(judges, features=None)
    judged = JudgedImages(judges)
    if not known or judges.classifier is not None:
        for batch in dealt_batches(data, dataset, numbers, batch_size, name):
            judged.update(batch["images"], batch.get("labels"))
    judged.gather()
    if path is not None:
        (FeatureCache.load if known else FeatureCache.save)(path, judged)
    return judged
