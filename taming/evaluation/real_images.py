"""The images of an evaluation: checked, batched, and their features kept for the next one."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from taming.conditioning import ImageCondition, class_difference
from taming.data import ImageDataset, LabelMapReader
from taming.data.batches import make_loader
from taming.data.module import ImageDataModule
from taming.evaluation import FeatureNetwork, ImageClassifier, JudgedImages, Judges, in_proportion
from taming.generation import ImageGenerator
from taming.runtime.errors import UserError
from taming.runtime.process_group import largest_share, on_first_rank, rank, rank_share
from taming.tokenizer import VQGAN

__all__ = [
    "RealImages",
    "check_classifier",
    "check_data",
    "chosen",
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
    found = in_proportion([dataset.label(number) for number in numbers], most, seed)
    return found if dataset.block is None else sorted(found)  # a stream is read in order


class RealImages:
    """The real images of an evaluation, judged: those of validation, and some of training.

    Features are kept in `cache_dir` for the next evaluation of the same images by the same network.

    Attributes:
        val, val_numbers: the validation images, up to `max_images`, and which they are.
        train: the features of up to `max_training_images`; None without a feature network.
    """

    def __init__(
        self,
        data: ImageDataModule,
        judges: Judges,
        batch_size: int,
        max_images: int | None,
        max_training_images: int | None,
        cache_dir: str | Path | None,
    ) -> None:
        self.data, self.judges = data, judges
        self._batch_size = batch_size
        self._cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
        self.val_numbers = chosen(data.val_dataset, max_images, judges.seed)
        self.val = self._judge(judges, data.val_dataset, self.val_numbers, "validation images")
        self.train: JudgedImages | None = None
        if judges.features is not None:
            some = chosen(data.train_dataset, max_training_images, judges.seed)
            network = replace(judges, classifier=None)
            self.train = self._judge(network, data.train_dataset, some, "training images")

    def batches(
        self, dataset: ImageDataset, numbers: Sequence[int], name: str
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields this rank's batches of images, not augmented, each after its first one's place.

        They are counted by a progress bar of this name.
        """
        size = min(self._batch_size, largest_share(len(numbers)))
        starts = list(rank_share(range(0, len(numbers), size)))
        batches = [numbers[start : start + size] for start in starts]
        loader = make_loader(dataset, self.data.num_workers_for(dataset), batch_sampler=batches)
        bar = tqdm(loader, name, unit="batch", mininterval=1, disable=rank() > 0)
        yield from zip(starts, bar, strict=True)

    def judge_val(self, judges: Judges, name: str) -> JudgedImages:
        """Returns the validation images as other judges see them."""
        return self._judge(judges, self.data.val_dataset, self.val_numbers, name)

    def _judge(
        self, judges: Judges, dataset: ImageDataset, numbers: Sequence[int], name: str
    ) -> JudgedImages:
        """Returns images as judged, whole on the first process."""
        cached = on_first_rank(lambda: self._cached(judges.features, dataset, numbers))
        known = cached is not None and on_first_rank(cached.is_file)
        judged = JudgedImages(replace(judges, features=None) if known else judges)
        if not known or judges.classifier is not None:
            for _, batch in self.batches(dataset, numbers, name):
                judged.update(batch["images"], batch.get("labels"))
        judged.gather()
        if cached is not None and rank() == 0:
            (judged.load_features if known else judged.save_features)(cached)
        return judged

    def _cached(
        self, network: FeatureNetwork | None, dataset: ImageDataset, numbers: Sequence[int]
    ) -> Path | None:
        """Returns the file of the features, named after all that decides its contents."""
        if network is None or self._cache_dir is None:
            return None
        terms = dataset.fingerprint(), list(numbers), network.description, network.digest
        name = hashlib.sha256(repr(terms).encode()).hexdigest()[:16]
        return self._cache_dir / f"{name}.safetensors"
