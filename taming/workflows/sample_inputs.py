"""What samples are made from: classes, condition images, images to complete."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import PurePosixPath

import torch

from taming.conditioning import ImageCondition, Tokenizer
from taming.data import (
    BrokenImageError,
    ImageFolder,
    ImageTransform,
    LabelMapReader,
    PictureReader,
    Reader,
)
from taming.errors import UserError
from taming.generation import ImageGenerator, check_guidance, check_keep_rows
from taming.workflows.class_names import listed
from taming.workflows.sample_classes import NO_CLASS, chosen_labels, folder_classes
from taming.workflows.sample_settings import GivenImages, SampleSettings

__all__ = ["InputImages", "SampleInputs", "find_inputs"]

NUM_IMAGES = 16  # where nothing says how many


class InputImages:
    """Images as a tokenizer takes them, read when they are needed; after the last comes the first.

    Pictures and label maps are resized and cut in the middle, as for validation.

    Args:
        tokenizer: gives the kind of images.
        grid_size: (height, width) in codes that they are cut to.
        given: where they are.

    Raises:
        MissingPathError: if there is nothing at the path.
        UserError: if there are no images.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        grid_size: Sequence[int],
        given: GivenImages,
    ) -> None:
        assert given.path is not None
        self.path = given.path
        self.grid_size = tuple(grid_size)
        factor = tokenizer.downsample_factor
        self.transform = ImageTransform(
            resolution=(grid_size[0] * factor, grid_size[1] * factor),
            resize="shorter_side",
            crop="center",
        )
        channels = tokenizer.image_channels
        self.reader: Reader = PictureReader(1 if channels == 1 else 3)
        if tokenizer.label_maps:
            assert given.unlabelled != "auto" and given.unlabelled_class != "auto"  # read_as
            self.reader = LabelMapReader(channels, given.unlabelled, given.unlabelled_class)
        self.source = ImageFolder(given.path, self.reader, subfolder=given.subfolder)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> torch.Tensor:
        """`(c H W)`: a picture in [-1, 1], or a one-hot label map.

        Raises:
            UserError: if the file cannot be read, or is no label map of the model's classes.
        """
        index = number % len(self)
        try:
            image = self.transform(self.source.load(index), name=self.name(number))
            return self.reader.tensor(image)
        except BrokenImageError as error:
            raise UserError(
                f"{self.source.description}: {self.name(number)} cannot be read ({error}). Replace "
                "it, or take it away."
            ) from error

    def batch(self, numbers: Iterable[int]) -> torch.Tensor:
        """`(b c H W)`."""
        return torch.stack([self[number] for number in numbers])

    def name(self, number: int) -> str:
        """Path below the folder or in the archive."""
        return self.source.name(number % len(self))

    def classes(self, count: int, class_names: Sequence[str]) -> list[str] | None:
        """Of each of the first `count` the class whose name its folder has: `folder_classes`."""
        files = [self.name(number) for number in range(min(count, len(self)))]
        return folder_classes(files, self.path, class_names)

    def check(self, count: int) -> None:
        """Reads the first `count` once, so that what is wrong with one of them is said now."""
        with ThreadPool(min(8, os.cpu_count() or 1)) as pool:  # Pillow decodes outside the lock
            for _ in pool.imap(self._check, range(min(count, len(self)))):
                pass

    def _check(self, number: int) -> None:
        self[number]

    def describe(self, noun: str, count: int) -> str:
        """How many there are, and which `count` images take."""
        there = f"{len(self)} {noun} in {self.source.description}"
        if len(self) == count:
            return there
        return f"{there}, {f'the first {count}' if count < len(self) else f'{count} in turn'}"


@dataclass(frozen=True)
class SampleInputs:
    """What each image is made from; image number i takes number i of everything.

    Attributes:
        num_images: how many images.
        labels: `(num_images,)` int64, of models with classes; None also where none is asked for.
        labels_note: where they are from, if that is not plain from the settings.
        conditions: of models that are asked for images.
        complete: images whose first rows are kept.
        keep_rows: rows of codes.
    """

    num_images: int
    labels: torch.Tensor | None = None
    labels_note: str | None = None
    conditions: InputImages | None = None
    complete: InputImages | None = None
    keep_rows: int = 0

    def condition(self, numbers: Sequence[int]) -> torch.Tensor | None:
        """What is asked for: `(b,)` labels, `(b c H W)` images, or None for nothing."""
        if self.conditions is not None:
            return self.conditions.batch(numbers)
        return None if self.labels is None else self.labels[torch.tensor(numbers)]

    def names(self) -> list[str] | None:
        """Of each image the file it is made from, if there is one."""
        images = self.conditions or self.complete
        return None if images is None else [images.name(i) for i in range(self.num_images)]

    def notes(self) -> list[str]:
        """What is given, a sentence each."""
        given = {"conditions": self.conditions, "images to complete": self.complete}
        notes = [
            images.describe(noun, self.num_images) + "."
            for noun, images in given.items()
            if images is not None
        ]
        if self.conditions is not None and self.complete is not None:
            first = self.conditions.name(0), self.complete.name(0)
            notes.append(f"they are paired in their order: {first[0]} with {first[1]} and so on.")
        if self.complete is not None:
            rows, height = self.keep_rows, self.complete.grid_size[0]
            notes.append(f"{rows} of {height} rows of codes are the given images' own.")
        if self.labels_note is not None:
            notes.append(self.labels_note)
        return notes


def find_inputs(generator: ImageGenerator, settings: SampleSettings) -> SampleInputs:
    """Finds what the images are made from, and reads all of it once to see that it can be used.

    Raises:
        MissingPathError: if there is nothing at a path.
        UserError: for settings that the model cannot do, or images that it cannot use.
    """
    tokenizer = generator.require_tokenizer()
    height, width = settings.large_grid_size or generator.grid_size
    generator.plan_windows((height, width), settings.stride)  # whether it can
    conditions = _conditions(generator, settings, (height, width))
    complete, keep_rows = None, 0
    if settings.complete.path is not None:
        chosen = settings.complete.keep_rows
        keep_rows = height // 2 if chosen is None else chosen
        check_keep_rows(keep_rows, height, "complete.keep_rows")
        as_given = settings.complete.read_as(255, None)
        complete = InputImages(tokenizer, (height, width), as_given)
    given = [images for images in (conditions, complete) if images is not None]
    num_images = settings.num_images or max(map(len, given), default=NUM_IMAGES)
    if conditions is not None and complete is not None:
        _check_pairs(conditions, complete, num_images)
    labels, labels_note = _labels(generator, settings, complete, num_images)
    has_condition = labels is not None or conditions is not None
    check_guidance(settings.guidance, generator.conditioning, has_condition=has_condition)
    for images in given:
        images.check(num_images)
    return SampleInputs(num_images, labels, labels_note, conditions, complete, keep_rows)


def _conditions(
    generator: ImageGenerator, settings: SampleSettings, grid_size: tuple[int, int]
) -> InputImages | None:
    given, conditioning = settings.conditions, generator.conditioning
    if not conditioning.takes_images:
        if given.path is not None:
            raise UserError(
                "conditions.path: this model was not trained on condition images; it is asked for "
                f"{'nothing' if conditioning.num_classes is None else 'classes'}. To continue "
                "images from their first rows, give them as complete.path."
            )
        return None
    if given.path is None:
        if conditioning.can_do_without:
            return None
        raise UserError(
            "this model makes images from condition images and was not trained to do without: give "
            "a folder, a .zip file or an image of them as conditions.path."
        )
    assert isinstance(conditioning, ImageCondition)
    return InputImages(
        generator.require_condition_tokenizer(),
        generator.condition_grid_size(grid_size),
        given.read_as(conditioning.unlabelled, conditioning.unlabelled_class),
    )


def _check_pairs(conditions: InputImages, complete: InputImages, num_images: int) -> None:
    """Refuses images and conditions that go together by name, and not by number."""
    if 1 in (len(conditions), len(complete)):  # one for all
        return
    stems = [
        [PurePosixPath(images.name(number)).stem for number in range(num_images)]
        for images in (conditions, complete)
    ]
    if not set(stems[0]) & set(stems[1]):  # names that say nothing of each other
        return
    for number, (condition, image) in enumerate(zip(*stems, strict=True)):
        if condition != image:
            raise UserError(
                "conditions and images to complete are paired in their order, and the first that "
                f"do not have the same name are {conditions.name(number)} and "
                f"{complete.name(number)}: take away those that have no partner"
                + (f", or stop before them with num_images={number}." if number else ".")
            )


def _labels(
    generator: ImageGenerator,
    settings: SampleSettings,
    complete: InputImages | None,
    num_images: int,
) -> tuple[torch.Tensor | None, str | None]:
    """`(num_images,)`, None for no class; and a note that says where they are from."""
    conditioning = generator.conditioning
    num_classes = conditioning.num_classes
    if num_classes is None:
        if settings.classes is not None:
            raise UserError("this model was trained without classes: leave `classes` out.")
        return None, None
    names = generator.class_names or ()
    chosen: Sequence[int | str] | None = settings.chosen_classes
    note = None
    if chosen == [NO_CLASS] and NO_CLASS not in names:
        if not conditioning.can_do_without:
            raise UserError(
                f"classes={NO_CLASS}: this model was trained without condition_dropout and has not "
                "learned to do without a class: name classes, or leave it out for all in turn."
            )
        return None, None
    if chosen is None and complete is not None:
        chosen = complete.classes(num_images, names)
        note = "each is of the class whose name its folder has."
        if chosen is None:
            note = "no folder of the images to complete is named like a class: "
            if conditioning.can_do_without:
                return None, note + "none is asked for. `classes` can say what they show."
            taken = range(min(num_images, num_classes))
            note += f"of the classes {listed([names[c] if names else c for c in taken])} in turn. "
            note += "Say with `classes` what they show."
    if chosen is None:
        chosen = range(num_classes)
    return chosen_labels(chosen, num_classes, names, num_images), note
