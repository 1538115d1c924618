"""The real images of an evaluation: checked, batched, judged, and their features cached."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm

from taming.conditioning import ImageCondition, class_difference
from taming.data import ImageDataset, LabelMapReader
from taming.data.batches import make_loader
from taming.data.module import ImageDataModule
from taming.evaluation.classifier import ImageClassifier
from taming.evaluation.judges import (
    JudgedImages,
    Judges,
    gather_rows,
    in_proportion,
    save_rows,
)
from taming.evaluation.near_duplicates import NearDuplicates, find_pairs, thumbnails
from taming.evaluation.options import EvaluationOptions, HeldOutPart
from taming.evaluation.reference import ReferenceComparison, ReferenceFile
from taming.generation import ImageGenerator
from taming.runtime.errors import UserError
from taming.runtime.process_group import largest_share, on_first_rank, rank, rank_share
from taming.tokenizer import VQGAN

__all__ = ["RealImages", "check_classifier", "check_data", "choose_images", "choose_part"]


def check_data(model: ImageGenerator | VQGAN, data: ImageDataModule) -> VQGAN:
    """Returns the model's tokenizer; raises a `UserError` for data that do not suit the model."""
    tokenizer = model if isinstance(model, VQGAN) else model.require_tokenizer()
    tokenizer.check_kind(data.label_maps, data.channels)
    if isinstance(model, VQGAN):
        return tokenizer
    if data.resolution != model.resolution:
        height, width = model.resolution
        raise UserError(
            f"The images are {data.resolution[0]}×{data.resolution[1]}, but the generator makes "
            f"{height}×{width}. Set data.resolution=[{height},{width}], or leave it out."
        )
    difference = None
    if isinstance(model.conditioning, ImageCondition):
        difference = _condition_difference(model, model.conditioning, data)
    elif model.conditioning.num_classes is not None:
        difference = class_difference(data, model.conditioning)
    if difference is not None:
        raise UserError(f"The data differ from the generator's training data: {difference}.")
    return tokenizer


def _condition_difference(
    generator: ImageGenerator, conditioning: ImageCondition, data: ImageDataModule
) -> str | None:
    """Describes how the condition images differ from the generator's; None if they do not."""
    reader, tokenizer = data.condition_reader, generator.require_condition_tokenizer()
    if reader is None:
        return "they have no condition images (use data=paired)"
    tokenizer.check_kind(reader.label_maps, reader.channels)
    if not reader.label_maps:
        return None
    unlabelled = conditioning.unlabelled, conditioning.unlabelled_class
    if repr(reader) == repr(LabelMapReader(tokenizer.image_channels, *unlabelled)):  # no palette
        return None
    value, class_number = ("null" if number is None else str(number) for number in unlabelled)
    return (
        f"their label maps need data.label_map.unlabelled={value} "
        f"data.label_map.unlabelled_class={class_number}"
    )


def check_classifier(classifier: ImageClassifier, data: ImageDataModule) -> None:
    """Raises a `UserError` for a classifier of other classes or channels than the data's."""
    difference = class_difference(classifier, data)
    if classifier.image_channels != data.channels:
        difference = f"it takes images of {classifier.image_channels} channels"
    if difference is not None:
        raise UserError(
            f"The classifier does not fit the data: {difference}. Use classifier=null to train "
            "a new one."
        )


def choose_images(
    dataset: ImageDataset, count: int | None, seed: int | None, repeat: bool = False
) -> Sequence[int]:
    """Returns the numbers of all images, or of `count` in proportion to their classes.

    With `repeat`, images repeat if the data set has fewer than `count`.
    """
    numbers = range(len(dataset))
    if count is None or (count >= len(dataset) and not repeat):
        return numbers
    sample = in_proportion([dataset.label(number) for number in numbers], count, seed)
    return sample if dataset.block is None else sorted(sample)  # a stream is read in order


def choose_part(data: ImageDataModule, part: HeldOutPart | Literal["auto"]) -> HeldOutPart:
    """Returns which held-out images to measure; raises a `UserError` if the data have none."""
    if data.test_dataset is not None:
        return "test" if part == "auto" else part
    if part == "test":
        raise UserError(
            "The data have no test images. Set data.test_fraction as in the training run, or "
            "part=validation."
        )
    return "validation"


class RealImages:
    """The held-out images of an evaluation and some of the training images, both judged.

    Args:
        data: the data module, set up.
        judges: the networks that judge.
        options: how many images to choose, and where to keep their features.
        reference: a reference file to compare with too; None without one.

    Attributes:
        part: which images are held out: those for validation or those for testing.
        held_out_dataset: the data set that contains them.
        held_out_numbers: numbers of the chosen images of the data set.
        near_duplicates: the near-duplicates of training images among them, unless the options
            ignore them. They are no longer chosen if the options leave them out.
        held_out: the chosen images, judged.
        train: the training images, judged by their features; None without a feature network.
        reference: the reference file; None without one.
    """

    def __init__(
        self,
        data: ImageDataModule,
        judges: Judges,
        options: EvaluationOptions,
        reference: ReferenceFile | None = None,
    ) -> None:
        self.data, self.judges, self.options = data, judges, options
        self.part = choose_part(data, options.part)
        self.held_out_dataset = data.val_dataset
        if self.part == "test":
            assert data.test_dataset is not None
            self.held_out_dataset = data.test_dataset
        dataset = self.held_out_dataset
        self.held_out_numbers = choose_images(dataset, options.max_images, judges.seed)
        self.near_duplicates: NearDuplicates | None = None
        if options.near_duplicates != "ignore":
            self.near_duplicates = self._find_near_duplicates()
            if self.near_duplicates.left_out:
                self.held_out_numbers = self._without(self.near_duplicates)
        name = f"{self.part} images"
        self.held_out = self.judge(judges, dataset, self.held_out_numbers, name)
        self.train: JudgedImages | None = None
        if judges.features is not None:
            train, count = data.train_dataset, options.max_training_images
            numbers = choose_images(train, count, judges.seed)
            network = replace(judges, classifier=None, spatial=False)
            self.train = self.judge(network, train, numbers, "training images")
        self.reference, self._comparison = reference, None
        if reference is not None:
            assert judges.features is not None
            images = None
            if (pictures := reference.images) is not None:
                network = replace(judges, classifier=None)
                images = self.judge(network, pictures, range(len(pictures)), "reference images")
            if rank() == 0:
                self._comparison = ReferenceComparison(reference, images, judges.features)

    def reference_numbers(
        self, judged: JudgedImages, shuffle_seed: int | None = None
    ) -> dict[str, float]:
        """Returns `ReferenceComparison.numbers`; empty without a reference file."""
        if self._comparison is None:
            return {}
        return self._comparison.numbers(judged, shuffle_seed=shuffle_seed)

    def batches(
        self, dataset: ImageDataset, numbers: Sequence[int], name: str
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields this process's batches of unaugmented images, with a progress bar of this name.

        Each batch comes after the position of its first image in `numbers`.
        """
        size = min(self.options.sampling.images_at_once, largest_share(len(numbers)))
        starts = list(rank_share(range(0, len(numbers), size)))
        batches = [numbers[start : start + size] for start in starts]
        loader = make_loader(dataset, self.data.num_workers_for(dataset), batch_sampler=batches)
        bar = tqdm(loader, name, unit="batch", mininterval=1, disable=rank() > 0)
        yield from zip(starts, bar, strict=True)

    def judge(
        self, judges: Judges, dataset: ImageDataset, numbers: Sequence[int], name: str
    ) -> JudgedImages:
        """Judges these images, with a progress bar of this name."""
        cache = on_first_rank(lambda: self._cache_file(judges, dataset, numbers))
        cached = cache is not None and on_first_rank(cache.is_file)
        judged = JudgedImages(replace(judges, features=None) if cached else judges)
        if not cached or judges.classifier is not None:
            for _, batch in self.batches(dataset, numbers, name):
                judged.update(batch["images"], batch.get("labels"))
        judged.gather()
        if cache is not None and rank() == 0:
            (judged.load_features if cached else judged.save_features)(cache)
        return judged

    def _find_near_duplicates(self) -> NearDuplicates:
        """Searches all training images; of a stream, only the images that are judged anyway."""
        train, transform = self.data.train_dataset, self.data.transform
        count = None if train.block is None else self.options.max_training_images
        numbers = choose_images(train, count, self.judges.seed)
        name = f"thumbnails of {self.part} images"
        held_out = self._thumbnails(self.held_out_dataset, self.held_out_numbers, name)
        training = self._thumbnails(train, numbers, "thumbnails of training images")
        mirror, device = transform.horizontal_flip, self.judges.device
        pairs = on_first_rank(lambda: find_pairs(held_out, training, mirror=mirror, device=device))
        return NearDuplicates(
            pairs,
            self.held_out_dataset,
            self.held_out_numbers,
            train,
            numbers,
            left_out=self.options.near_duplicates == "leave_out",
        )

    def _without(self, near_duplicates: NearDuplicates) -> list[int]:
        left_out = {pair.held_out for pair in near_duplicates.pairs}
        numbers = [x for i, x in enumerate(self.held_out_numbers) if i not in left_out]
        if len(numbers) < 2:
            raise UserError(
                f"{len(left_out)} of {len(self.held_out_numbers)} {self.part} images are "
                "near-duplicates of training images, so too few remain. Set near_duplicates=count."
            )
        return numbers

    def _thumbnails(self, dataset: ImageDataset, numbers: Sequence[int], name: str) -> Tensor:
        """Returns thumbnails, `(n c 16 16)` on the first process and empty on the others."""
        cache = on_first_rank(lambda: self._cache_path(dataset, numbers, "thumbnails"))
        if cache is not None and on_first_rank(cache.is_file):
            return load_file(cache)["thumbnails"] if rank() == 0 else torch.empty(0)
        batches = self.batches(dataset, numbers, name)
        rows = gather_rows([{"thumbnails": thumbnails(batch["images"])} for _, batch in batches])
        if cache is not None and rank() == 0:
            save_rows(cache, rows)
        return rows.get("thumbnails", torch.empty(0))

    def _cache_file(
        self, judges: Judges, dataset: ImageDataset, numbers: Sequence[int]
    ) -> Path | None:
        """Returns the file of the features, named after the images and the network."""
        network = judges.features
        if network is None:
            return None
        terms = network.description, network.digest, *["spatial"] * judges.spatial
        return self._cache_path(dataset, numbers, *terms)

    def _cache_path(
        self, dataset: ImageDataset, numbers: Sequence[int], *terms: str
    ) -> Path | None:
        """Returns a file named after the images and the `terms`; None without a cache."""
        if self.options.cache_dir is None:
            return None
        name = repr((dataset.fingerprint(), list(numbers), *terms))
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return Path(self.options.cache_dir).expanduser() / f"{digest}.safetensors"
