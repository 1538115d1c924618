"""What samples are made from: classes, condition images, images to complete."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path, PurePosixPath
from typing import Literal

import torch
from torch import Tensor

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
from taming.generation import ImageGenerator, check_keep_rows

__all__ = ["GivenImages", "ImagesToComplete", "InputImages", "SampleInputs", "find_inputs"]

NO_CLASS = "none"  # requests no class, unless a class has this name
NUM_IMAGES = 16  # where nothing says how many


@dataclass(frozen=True)
class GivenImages:
    """Where condition images are, and how label maps among them are read."""

    path: str | Path | None = None  # a folder, a .zip file or one image; None: there are none
    subfolder: str | None = None  # only the images below this folder of it
    # see `taming.data.LabelMapReader`; auto: as in training; of images to complete 255 and None
    unlabelled: int | Literal["auto"] | None = "auto"
    unlabelled_class: int | Literal["auto"] | None = "auto"


@dataclass(frozen=True)
class ImagesToComplete(GivenImages):
    """Where images are whose first rows of codes are kept."""

    keep_rows: int | None = None  # None: half of them


class InputImages:
    """Images for a tokenizer, read when they are needed; after the last the first comes again.

    They are resized and cropped in the middle to `grid_size` codes, as for validation. Label maps
    are read with `unlabelled` and `unlabelled_class` unless `given` has its own.
    """

    def __init__(
        self,
        given: GivenImages,
        tokenizer: Tokenizer,
        grid_size: tuple[int, int],
        unlabelled: int | None = 255,
        unlabelled_class: int | None = None,
    ) -> None:
        assert given.path is not None
        factor, channels = tokenizer.downsample_factor, tokenizer.image_channels
        self.transform = ImageTransform(
            resolution=(grid_size[0] * factor, grid_size[1] * factor),
            resize="shorter_side",
            crop="center",
        )
        self.reader: Reader = PictureReader(1 if channels == 1 else 3)
        if tokenizer.label_maps:
            if given.unlabelled != "auto":
                unlabelled = given.unlabelled
            if given.unlabelled_class != "auto":
                unlabelled_class = given.unlabelled_class
            self.reader = LabelMapReader(channels, unlabelled, unlabelled_class)
        self.source = ImageFolder(given.path, self.reader, subfolder=given.subfolder)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Tensor:
        """Reads `(c H W)`: a picture in [-1, 1], or a one-hot label map."""
        try:
            image = self.source.load(number % len(self))
            return self.reader.tensor(self.transform(image, name=self.name(number)))
        except BrokenImageError as error:
            raise UserError(
                f"{self.source.description}: {self.name(number)} cannot be read ({error}). Replace "
                "or remove it."
            ) from error

    def batch(self, numbers: range) -> Tensor:
        """Reads `(b c H W)`."""
        return torch.stack([self[number] for number in numbers])

    def name(self, number: int) -> str:
        """Path below the folder or in the archive."""
        return self.source.name(number % len(self))

    def check(self, count: int) -> None:
        """Reads the first `count` once, so that a broken one is named before any work."""
        with ThreadPool(min(8, os.cpu_count() or 1)) as pool:  # Pillow decodes outside the lock
            for _ in pool.imap(lambda number: self[number] is None, range(min(count, len(self)))):
                pass

    def describe(self, noun: str, count: int) -> str:
        """Says how many there are, and how `count` samples use them."""
        used = "" if len(self) == count else f", {count} in turn"
        if count < len(self):
            used = f", the first {count}"
        return f"{len(self)} {noun} in {self.source.description}{used}."


@dataclass
class SampleInputs:
    """What each image is made from; image number i takes number i of everything."""

    num_images: int
    labels: Tensor | None = None  # (num_images,) int64; None: no class is requested
    conditions: InputImages | None = None
    complete: InputImages | None = None  # images whose first rows are kept
    keep_rows: int = 0  # rows of codes
    notes: list[str] = field(default_factory=list)  # for the user, a sentence each

    def condition(self, numbers: range) -> Tensor | None:
        """Returns `(b,)` labels, `(b c H W)` images, or None for no condition."""
        if self.conditions is not None:
            return self.conditions.batch(numbers)
        return None if self.labels is None else self.labels[numbers.start : numbers.stop]


def find_inputs(
    generator: ImageGenerator,
    grid_size: tuple[int, int],
    num_images: int | None,
    classes: Sequence[int | str] | None,
    conditions: GivenImages,
    complete: ImagesToComplete,
) -> SampleInputs:
    """Finds what images of `grid_size` codes are made from, and reads all of it once.

    The arguments are those of `sample_images`.

    Raises:
        MissingPathError: if there is nothing at a path.
        UserError: for what the model does not support, or images that it cannot use.
    """
    for group, given in (("conditions", conditions), ("complete", complete)):
        if given.path is None and given != type(given)():
            raise UserError(f"settings of {group} have no effect without {group}.path: give it.")
    inputs = SampleInputs(0, conditions=_conditions(generator, conditions, grid_size))
    if complete.path is not None:
        height = grid_size[0]
        inputs.keep_rows = height // 2 if complete.keep_rows is None else complete.keep_rows
        check_keep_rows(inputs.keep_rows, height, "complete.keep_rows")
        inputs.complete = InputImages(complete, generator.require_tokenizer(), grid_size)
    given_images = {"conditions": inputs.conditions, "images to complete": inputs.complete}
    found = {noun: images for noun, images in given_images.items() if images is not None}
    count = inputs.num_images = num_images or max(map(len, found.values()), default=NUM_IMAGES)
    inputs.notes += [images.describe(noun, count) for noun, images in found.items()]
    if inputs.conditions is not None and inputs.complete is not None:
        _check_pairs(inputs.conditions, inputs.complete, count)
    _add_labels(inputs, generator, classes, complete.path)
    for images in found.values():
        images.check(count)
    return inputs


def _conditions(
    generator: ImageGenerator, given: GivenImages, grid_size: tuple[int, int]
) -> InputImages | None:
    conditioning = generator.conditioning
    if not isinstance(conditioning, ImageCondition):
        if given.path is not None:
            raise UserError(
                "conditions.path: this model was not trained on condition images. To continue "
                "images from their first rows, give them as complete.path."
            )
        return None
    if given.path is None and not conditioning.can_do_without:
        raise UserError(
            "this model makes images from condition images and was not trained to do without: give "
            "a folder, a .zip file or an image of them as conditions.path."
        )
    if given.path is None:
        return None
    cells = generator.condition_grid_size(grid_size)
    tokenizer = generator.require_condition_tokenizer()
    reading = conditioning.unlabelled, conditioning.unlabelled_class
    return InputImages(given, tokenizer, cells, *reading)


def _check_pairs(conditions: InputImages, complete: InputImages, num_images: int) -> None:
    """Refuses images and conditions that belong together by name, and not by number."""
    names = [[x.name(i) for i in range(num_images)] for x in (conditions, complete)]
    stems = [[PurePosixPath(name).stem for name in side] for side in names]
    if 1 in (len(conditions), len(complete)) or not set(stems[0]) & set(stems[1]):
        return  # one for all, or names that have nothing to do with each other
    for number, (condition, image) in enumerate(zip(*stems, strict=True)):
        if condition != image:
            raise UserError(
                "conditions and images to complete are paired in their order, and the first with "
                f"different names are {names[0][number]} and {names[1][number]}: remove those "
                "without a partner"
                + (f", or stop before them with num_images={number}." if number else ".")
            )


def _add_labels(
    inputs: SampleInputs,
    generator: ImageGenerator,
    classes: Sequence[int | str] | None,
    folder: str | Path | None,
) -> None:
    """Sets the labels; without `classes` those of the folders of images to complete."""
    conditioning = generator.conditioning
    if conditioning.num_classes is None:
        if classes is not None:
            raise UserError("this model was trained without classes: leave `classes` out.")
        return
    names = list(generator.class_names or ())
    if classes == [NO_CLASS] and NO_CLASS not in names:
        if not conditioning.can_do_without:
            raise UserError(
                f"classes={NO_CLASS}: this model was trained without condition_dropout and needs a "
                "class: name classes, or leave it out for all in turn."
            )
        return
    if classes is None and inputs.complete is not None and folder is not None:
        count = min(inputs.num_images, len(inputs.complete))
        files = [inputs.complete.name(number) for number in range(count)]
        classes = _folder_classes(files, folder, names)
        if classes is None:
            note = "no folder of the images to complete is named like a class:"
            if conditioning.can_do_without:
                inputs.notes.append(f"{note} no class is requested; `classes` can name it.")
                return
            inputs.notes.append(f"{note} all classes in turn; name the right ones with `classes`.")
    if classes is None:
        classes = range(conditioning.num_classes)
    if not classes:
        raise UserError("`classes` is empty: name a class, or leave it out for all in turn.")
    labels = [names.index(c) if isinstance(c, str) and c in names else c for c in classes]
    for label in labels:
        if not isinstance(label, int) or not 0 <= label < conditioning.num_classes:
            known = f" ({', '.join(names[:10])}{', …' if len(names) > 10 else ''})" if names else ""
            raise UserError(
                f"class {label!r} does not exist in this model: it has the labels 0 to "
                f"{conditioning.num_classes - 1}{known}."
            )
    inputs.labels = torch.tensor([labels[i % len(labels)] for i in range(inputs.num_images)])


def _folder_classes(
    files: Sequence[str], path: str | Path, class_names: Sequence[str]
) -> list[str] | None:
    """Returns for each image the class that its folder is named after; None if none is.

    The outermost such folder below `path` counts, as in training, and `path` itself after those.

    Raises:
        UserError: if only some images have such a folder.
    """
    root = Path(path).expanduser().absolute()  # a link counts by its own name
    if root.is_file() and root.suffix.lower() != ".zip":
        root = root.parent
    found = []
    for file in files:
        folders = [*PurePosixPath(file).parts[:-1], root.name]
        found.append(next((name for name in folders if name in class_names), None))
    without = [file for file, name in zip(files, found, strict=True) if name is None]
    if without and len(without) < len(files):
        raise UserError(
            f"{path}: {len(without)} of {len(files)} images lie in no folder that is named like a "
            f"class of the model, such as {without[0]}. Move them, or say with `classes` what the "
            "images show."
        )
    return None if without else [name for name in found if name is not None]
