"""What samples are made from: classes, condition images, images to complete."""

import os
from collections.abc import Iterable, Sequence
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
    """Where condition images are.

    Attributes:
        path: a folder, a `.zip` file or a single image; None: there are none.
        subfolder: only the images below this folder of it; None for all.
        unlabelled, unlabelled_class: of label maps, see `taming.data.LabelMapReader`; "auto": as in
            the model's training. The classes are the model's.
    """

    path: str | Path | None = None
    subfolder: str | None = None
    unlabelled: int | Literal["auto"] | None = "auto"
    unlabelled_class: int | Literal["auto"] | None = "auto"


@dataclass(frozen=True)
class ImagesToComplete(GivenImages):
    """Where images are of which the first rows are kept.

    A tokenizer does not know how label maps were read: for `unlabelled` and `unlabelled_class`
    "auto" means 255 and None.

    Attributes:
        keep_rows: rows of codes that are kept; None: half of them.
    """

    keep_rows: int | None = None


class InputImages:
    """Images for a tokenizer, read when they are needed; after the last the first comes again.

    Pictures and label maps are resized and cut in the middle, as for validation.

    Args:
        given: where they are.
        tokenizer: says what kind of images.
        grid_size: (height, width) in codes that they are cut to.
        unlabelled, unlabelled_class: how label maps are read if `given` does not say.

    Raises:
        MissingPathError: if there is nothing at the path.
        UserError: if there are no images.
    """

    def __init__(
        self,
        given: GivenImages,
        tokenizer: Tokenizer,
        grid_size: tuple[int, int],
        unlabelled: int | None,
        unlabelled_class: int | None,
    ) -> None:
        assert given.path is not None
        self.path = given.path
        self.grid_size = grid_size
        factor, channels = tokenizer.downsample_factor, tokenizer.image_channels
        self.transform = ImageTransform(
            resolution=(grid_size[0] * factor, grid_size[1] * factor),
            resize="shorter_side",
            crop="center",
        )
        self.reader: Reader = PictureReader(1 if channels == 1 else 3)
        if tokenizer.label_maps:
            own = given.unlabelled, given.unlabelled_class
            self.reader = LabelMapReader(
                channels,
                unlabelled if own[0] == "auto" else own[0],
                unlabelled_class if own[1] == "auto" else own[1],
            )
        self.source = ImageFolder(given.path, self.reader, subfolder=given.subfolder)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Tensor:
        """`(c H W)`: a picture in [-1, 1], or a one-hot label map.

        Raises:
            UserError: if the file cannot be read, or is not a label map of the model's classes.
        """
        try:
            image = self.source.load(number % len(self))
            return self.reader.tensor(self.transform(image, name=self.name(number)))
        except BrokenImageError as error:
            raise UserError(
                f"{self.source.description}: {self.name(number)} cannot be read ({error}). Replace "
                "it, or take it away."
            ) from error

    def batch(self, numbers: Iterable[int]) -> Tensor:
        """`(b c H W)`."""
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
        """Says how many there are, and which `count` images take."""
        there = f"{len(self)} {noun} in {self.source.description}"
        if len(self) == count:
            return f"{there}."
        return f"{there}, {f'the first {count}' if count < len(self) else f'{count} in turn'}."


@dataclass
class SampleInputs:
    """What each image is made from; image number i takes number i of everything.

    Attributes:
        num_images: how many images.
        labels: `(num_images,)` int64, of models with classes; None if no class is requested.
        conditions: of models with condition images.
        complete: images whose first rows are kept.
        keep_rows: rows of codes.
        notes: where all this is from, a sentence each.
    """

    num_images: int
    labels: Tensor | None = None
    conditions: InputImages | None = None
    complete: InputImages | None = None
    keep_rows: int = 0
    notes: list[str] = field(default_factory=list)

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
    """Finds what the images are made from, and reads all of it once to see that it can be used.

    Args:
        generator: the model.
        grid_size: (height, width) of the images in codes.
        num_images: see `sample_images`.
        classes: likewise.
        conditions: likewise.
        complete: likewise.

    Raises:
        MissingPathError: if there is nothing at a path.
        UserError: for what the model does not support, or images that it cannot use.
    """
    for group, given in (("conditions", conditions), ("complete", complete)):
        if given.path is None and given != type(given)():
            raise UserError(f"settings of {group} have no effect without {group}.path: give it.")
    inputs = SampleInputs(0, conditions=_conditions(generator, conditions, grid_size))
    if complete.path is not None:
        tokenizer, height = generator.require_tokenizer(), grid_size[0]
        inputs.keep_rows = height // 2 if complete.keep_rows is None else complete.keep_rows
        check_keep_rows(inputs.keep_rows, height, "complete.keep_rows")
        inputs.complete = InputImages(complete, tokenizer, grid_size, 255, None)
    lengths = [len(x) for x in (inputs.conditions, inputs.complete) if x is not None]
    count = inputs.num_images = num_images or max(lengths, default=NUM_IMAGES)
    if inputs.conditions is not None:
        inputs.notes.append(inputs.conditions.describe("conditions", count))
    if inputs.complete is not None:
        inputs.notes.append(inputs.complete.describe("images to complete", count))
        inputs.notes.append(f"{inputs.keep_rows} of {height} rows of codes are kept.")
        if inputs.conditions is not None:
            _check_pairs(inputs.conditions, inputs.complete, count)
            first = inputs.conditions.name(0), inputs.complete.name(0)
            inputs.notes.append(f"paired in their order: {first[0]} with {first[1]} and so on.")
    _add_labels(inputs, generator, classes)
    for images in (inputs.conditions, inputs.complete):
        if images is not None:
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
    if given.path is None:
        if conditioning.can_do_without:
            return None
        raise UserError(
            "this model makes images from condition images and was not trained to do without: give "
            "a folder, a .zip file or an image of them as conditions.path."
        )
    return InputImages(
        given,
        generator.require_condition_tokenizer(),
        generator.condition_grid_size(grid_size),
        conditioning.unlabelled,
        conditioning.unlabelled_class,
    )


def _check_pairs(conditions: InputImages, complete: InputImages, num_images: int) -> None:
    """Refuses images and conditions that belong together by name, and not by number."""
    if 1 in (len(conditions), len(complete)):  # one for all
        return
    names = [[x.name(i) for i in range(num_images)] for x in (conditions, complete)]
    stems = [[PurePosixPath(name).stem for name in side] for side in names]
    if not set(stems[0]) & set(stems[1]):  # the names have nothing to do with each other
        return
    for number, (condition, image) in enumerate(zip(*stems, strict=True)):
        if condition != image:
            raise UserError(
                "conditions and images to complete are paired in their order, and the first with "
                f"different names are {names[0][number]} and {names[1][number]}: take away those "
                "that have no partner"
                + (f", or stop before them with num_images={number}." if number else ".")
            )


def _add_labels(
    inputs: SampleInputs, generator: ImageGenerator, classes: Sequence[int | str] | None
) -> None:
    conditioning = generator.conditioning
    if conditioning.num_classes is None:
        if classes is not None:
            raise UserError("this model was trained without classes: leave `classes` out.")
        return
    names = list(generator.class_names or ())
    if classes == [NO_CLASS] and NO_CLASS not in names:
        if not conditioning.can_do_without:
            raise UserError(
                f"classes={NO_CLASS}: this model was trained without condition_dropout and has not "
                "learned to do without a class: name classes, or leave it out for all in turn."
            )
        return
    if classes is None and inputs.complete is not None:
        count = min(inputs.num_images, len(inputs.complete))
        files = [inputs.complete.name(number) for number in range(count)]
        classes = _folder_classes(files, inputs.complete.path, names)
        if classes is not None:
            inputs.notes.append("the class of each is the name of its folder.")
        else:
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
    in_turn = [labels[i % len(labels)] for i in range(inputs.num_images)]
    inputs.labels = torch.tensor(in_turn, dtype=torch.int64)


def _folder_classes(
    files: Sequence[str], path: str | Path, class_names: Sequence[str]
) -> list[str] | None:
    """Returns for each image the class that its folder is named after; None if none is.

    Of several folders the outermost counts, as in training: folders in a class's folder belong to
    it. Only after those below `path` does the folder count that was given itself.

    Raises:
        UserError: if some images have such a folder and others have not.
    """
    given = Path(path).expanduser().absolute()  # a link counts by its own name
    if given.is_file() and given.suffix.lower() != ".zip":
        given = given.parent
    found = []
    for file in files:
        folders = [*PurePosixPath(file).parts[:-1], given.name]
        found.append(next((name for name in folders if name in class_names), None))
    without = [file for file, name in zip(files, found, strict=True) if name is None]
    if without and len(without) < len(files):
        raise UserError(
            f"{path}: {len(without)} of {len(files)} images lie in no folder that is named like a "
            f"class of the model, such as {without[0]}. Move them, or say with `classes` what the "
            "images show."
        )
    return None if without else [name for name in found if name is not None]
