"""The inputs of sampling: classes, condition images, images to complete."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch
from torch import Tensor

from taming.conditioning import ClassLabel, ImageCondition
from taming.data import (
    ImageDataset,
    ImageFolder,
    ImageTransform,
    LabelMapReader,
    Part,
    PictureReader,
    Reader,
)
from taming.generation import ImageGenerator, check_keep_rows
from taming.runtime.errors import UserError, join_names
from taming.tokenizer import Tokenizer

__all__ = ["GivenImages", "ImagesToComplete", "SampleInputs", "find_inputs"]

log = logging.getLogger("taming")

NO_CLASS = "none"  # requests no class, unless a class has this name
NUM_IMAGES = 16  # where nothing says how many


@dataclass(frozen=True)
class GivenImages:
    """The place of condition images, and how label maps among them are read."""

    path: str | Path | None = None  # a folder, a .zip file or one image; None: there are none
    subfolder: str | None = None  # only the images below this folder of it
    # see `taming.data.LabelMapReader`; auto: as in training; of images to complete 255 and None
    unlabelled: int | Literal["auto"] | None = "auto"
    unlabelled_class: int | Literal["auto"] | None = "auto"


@dataclass(frozen=True)
class ImagesToComplete(GivenImages):
    """The place of images whose first rows of codes are kept."""

    keep_rows: int | None = None  # None: half of them


@dataclass
class SampleInputs:
    """The inputs of each image; conditions and images to complete are taken in turn."""

    num_images: int
    labels: Tensor | None = None  # (num_images,) int64; None: no class is requested
    conditions: ImageDataset | None = None
    complete: ImageDataset | None = None  # images whose first rows are kept
    keep_rows: int = 0  # rows of codes
    note: str | None = None  # for the user

    def condition(self, numbers: range) -> Tensor | None:
        """Returns `(b,)` labels, `(b c H W)` images, or None for no condition."""
        if self.conditions is not None:
            return _batch(self.conditions, numbers)
        return None if self.labels is None else self.labels[numbers.start : numbers.stop]

    def to_complete(self, numbers: range) -> Tensor | None:
        """Returns `(b c H W)`, None where nothing is completed."""
        return None if self.complete is None else _batch(self.complete, numbers)

    def name(self, number: int) -> str | None:
        """Returns the file name of an image's condition, or else of the image to complete."""
        source = self.complete if self.conditions is None else self.conditions
        return None if source is None else source.name(number % len(source))


def _batch(images: ImageDataset, numbers: range) -> Tensor:
    return torch.stack([images[number % len(images)]["images"] for number in numbers])


def find_inputs(
    generator: ImageGenerator,
    grid_size: tuple[int, int],
    num_images: int | None,
    classes: Sequence[int | str] | None,
    conditions: GivenImages,
    complete: ImagesToComplete,
) -> SampleInputs:
    """Finds the inputs of images of `grid_size` codes, and reads all of them once.

    The arguments are those of `sample_images`.

    Raises:
        MissingPathError: if there is nothing at a path.
        UserError: for what the model does not support, or images that it cannot use.
    """
    for group, given in (("conditions", conditions), ("complete", complete)):
        if given.path is None and given != type(given)():
            raise UserError(f"settings of {group} have no effect without {group}.path: give it.")
    tokenizer = generator.require_tokenizer()
    inputs = SampleInputs(0, conditions=_conditions(generator, conditions, grid_size, num_images))
    if complete.path is not None:
        height = grid_size[0]
        inputs.keep_rows = height // 2 if complete.keep_rows is None else complete.keep_rows
        check_keep_rows(inputs.keep_rows, height)
        inputs.complete = _open(complete, tokenizer, grid_size, num_images)
    if inputs.conditions is not None and inputs.complete is not None:
        inputs.conditions, inputs.complete = _paired(inputs.conditions, inputs.complete)
    found = [images for images in (inputs.conditions, inputs.complete) if images is not None]
    inputs.num_images = num_images or max(map(len, found), default=NUM_IMAGES)
    _add_labels(inputs, generator, classes, complete.path)
    return inputs


def _open(
    given: GivenImages,
    tokenizer: Tokenizer,
    grid_size: tuple[int, int],
    most: int | None,
    unlabelled: int | None = 255,
    unlabelled_class: int | None = None,
) -> ImageDataset:
    """Opens images, resized and cropped in the middle; label maps are read as `given` says."""
    assert given.path is not None
    tokenizer.require_pictures(or_label_maps=True)
    factor, channels = tokenizer.downsample_factor, tokenizer.image_channels
    reader: Reader = PictureReader(1 if channels == 1 else 3)
    if tokenizer.label_maps:
        if given.unlabelled != "auto":
            unlabelled = given.unlabelled
        if given.unlabelled_class != "auto":
            unlabelled_class = given.unlabelled_class
        reader = LabelMapReader(channels, unlabelled, unlabelled_class)
    source = ImageFolder(given.path, reader, subfolder=given.subfolder)
    source.drop_broken("full", most)
    size = grid_size[0] * factor, grid_size[1] * factor
    transform = ImageTransform(resolution=size, resize="shorter_side", crop="center")
    return ImageDataset(Part(source), transform, seed=0)


def _conditions(
    generator: ImageGenerator, given: GivenImages, grid_size: tuple[int, int], most: int | None
) -> ImageDataset | None:
    conditioning = generator.conditioning
    if not isinstance(conditioning, ImageCondition):
        if given.path is not None:
            raise UserError(
                "conditions.path: this model was not trained on condition images; images to "
                "continue are given as complete.path."
            )
        return None
    if given.path is None:
        if not conditioning.can_do_without:
            raise UserError(
                "this model was trained without condition_dropout and needs condition images: give "
                "conditions.path, a folder, a .zip file or an image of them."
            )
        return None
    return _open(
        given,
        generator.require_condition_tokenizer(),
        generator.condition_grid_size(grid_size),
        most,
        conditioning.unlabelled,
        conditioning.unlabelled_class,
    )


def _paired(conditions: ImageDataset, complete: ImageDataset) -> tuple[ImageDataset, ImageDataset]:
    """Returns both without the partners of broken files.

    Refuses images and conditions that belong together by name, and not by number.
    """
    both = conditions, complete
    stems = [[PurePosixPath(images.name(i)).stem for i in range(len(images))] for images in both]
    if 1 in map(len, stems) or stems[0] == stems[1] or not {*stems[0]} & {*stems[1]}:
        return both  # one for all, pairs, or names that have nothing to do with each other
    alone = {*stems[0]} ^ {*stems[1]}
    if not any(images.images.broken for images in both):
        raise UserError(
            "conditions and images to complete are paired in their order, and some have no partner "
            f"of their name: remove {join_names(sorted(alone))}."
        )
    log.warning("left out, because the partner is broken or missing: %s", join_names(sorted(alone)))
    kept = [[i for i, stem in enumerate(names) if stem not in alone] for names in stems]
    return tuple(  # type: ignore[return-value]
        ImageDataset(Part(images.images, indices=indices), images.transform, seed=0)
        for images, indices in zip(both, kept, strict=True)
    )


def _add_labels(
    inputs: SampleInputs,
    generator: ImageGenerator,
    classes: Sequence[int | str] | None,
    folder: str | Path | None,
) -> None:
    """Sets the labels; without `classes` those of the folders of images to complete."""
    conditioning = generator.conditioning
    if not isinstance(conditioning, ClassLabel):
        if classes is not None:
            raise UserError("this model was trained without classes: leave `classes` out.")
        return
    names = conditioning.class_names or ()
    if classes == [NO_CLASS] and NO_CLASS not in names:
        conditioning.check(None, inputs.num_images)
        return
    if classes is None and inputs.complete is not None and folder is not None:
        files = [inputs.complete.name(number) for number in range(len(inputs.complete))]
        classes = _folder_classes(files, folder, names)
        if classes is None:
            none = conditioning.can_do_without
            taken = "no class is requested" if none else "all classes are taken in turn"
            inputs.note = f"no folder is named like a class: {taken}; `classes` can name others."
            if none:
                return
    labels = conditioning.labels(range(conditioning.num_classes) if classes is None else classes)
    if not len(labels):
        raise UserError("`classes` is empty: name a class, or leave it out for all in turn.")
    inputs.labels = labels[torch.arange(inputs.num_images) % len(labels)]


def _folder_classes(
    files: Sequence[str], path: str | Path, class_names: Sequence[str]
) -> list[str] | None:
    """Returns for each image the class that its folder is named after; None if none is.

    The outermost such folder below `path` counts, as in training, and `path` itself after those.

    Raises:
        UserError: if only some images have such a folder.
    """
    root = Path(path).expanduser().absolute()  # a link counts by its own name
    if root.is_file():
        root = root.parent
    found = []
    for file in files:
        folders = [*PurePosixPath(file).parts[:-1], root.name]
        found.append(next((name for name in folders if name in class_names), None))
    without = [file for file, name in zip(files, found, strict=True) if name is None]
    if without and len(without) < len(files):
        raise UserError(
            f"{path}: {len(without)} of {len(files)} images lie in no folder that is named like a "
            f"class, such as {without[0]}: move them, or name what the images show by `classes`."
        )
    return [name for name in found if name is not None] or None
