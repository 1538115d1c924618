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
from taming.generation.generator import ImageGenerator, check_keep_rows
from taming.runtime.errors import UserError, join_names
from taming.tokenizer import Tokenizer

__all__ = ["ImagesToComplete", "InputImages", "SampleInputs", "find_inputs"]

log = logging.getLogger("taming")

NO_CLASS = "none"  # requests no class, unless a class has this name
NUM_IMAGES = 16  # if there are neither images nor `num_images`


@dataclass(frozen=True)
class InputImages:
    """Where input images are, and how to read label maps among them.

    If there are more images than `num_images`, they are spread evenly over the sorted file names,
    so that each class folder contributes its share.
    """

    path: str | Path | None = None  # a folder, a .zip file or one image; None: no images
    subfolder: str | None = None  # read only this folder inside `path`
    # see `taming.data.LabelMapReader`; auto: as in training, for images to complete 255 and None
    unlabelled: int | Literal["auto"] | None = "auto"
    unlabelled_class: int | Literal["auto"] | None = "auto"


@dataclass(frozen=True)
class ImagesToComplete(InputImages):
    """Where images to complete are, and how many rows of their codes to keep."""

    keep_rows: int | None = None  # None: half of the rows


@dataclass
class SampleInputs:
    """The inputs of each sample. Samples take the images in turn."""

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
        """Returns `(b c H W)`; None without images to complete."""
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
    conditions: InputImages,
    complete: ImagesToComplete,
) -> SampleInputs:
    """Finds the inputs of images of `grid_size` codes, and checks every file.

    See `sample_images` for the arguments.

    Raises:
        MissingPathError: if there is nothing at a path.
        UserError: for what the model does not support, or images that it cannot use.
    """
    for group, images in (("conditions", conditions), ("complete", complete)):
        if images.path is None and images != type(images)():
            raise UserError(f"settings of {group} have no effect without {group}.path: give it.")
    tokenizer = generator.require_tokenizer()
    inputs = SampleInputs(
        0, conditions=_open_conditions(generator, conditions, grid_size, num_images)
    )
    if complete.path is not None:
        height = grid_size[0]
        inputs.keep_rows = height // 2 if complete.keep_rows is None else complete.keep_rows
        check_keep_rows(inputs.keep_rows, height)
        inputs.complete = _open(complete, tokenizer, grid_size, num_images)
    if inputs.conditions is not None and inputs.complete is not None:
        inputs.conditions, inputs.complete = _pair(inputs.conditions, inputs.complete)
    datasets = [images for images in (inputs.conditions, inputs.complete) if images is not None]
    inputs.num_images = num_images or max(map(len, datasets), default=NUM_IMAGES)
    _add_labels(inputs, generator, classes, complete.path)
    return inputs


def _open(
    images: InputImages,
    tokenizer: Tokenizer,
    grid_size: tuple[int, int],
    num_images: int | None,
    unlabelled: int | None = 255,
    unlabelled_class: int | None = None,
) -> ImageDataset:
    """Opens images, resized and cropped in the middle; at most `num_images`, evenly spread."""
    assert images.path is not None
    tokenizer.require_pictures(or_label_maps=True)
    factor, channels = tokenizer.downsample_factor, tokenizer.image_channels
    reader: Reader = PictureReader(1 if channels == 1 else 3)
    if tokenizer.label_maps:
        if images.unlabelled != "auto":
            unlabelled = images.unlabelled
        if images.unlabelled_class != "auto":
            unlabelled_class = images.unlabelled_class
        reader = LabelMapReader(channels, unlabelled, unlabelled_class)
    source = ImageFolder(images.path, reader, subfolder=images.subfolder)
    if num_images is not None and num_images < len(source):
        source.select([number * len(source) // num_images for number in range(num_images)])
    source.drop_broken("full")
    size = grid_size[0] * factor, grid_size[1] * factor
    transform = ImageTransform(resolution=size, resize="shorter_side", crop="center")
    return ImageDataset(Part(source), transform, seed=0)


def _open_conditions(
    generator: ImageGenerator,
    images: InputImages,
    grid_size: tuple[int, int],
    num_images: int | None,
) -> ImageDataset | None:
    conditioning = generator.conditioning
    if not isinstance(conditioning, ImageCondition):
        if images.path is not None:
            raise UserError(
                "conditions.path: this model was not trained on condition images. To complete "
                "images, give them as complete.path."
            )
        return None
    if images.path is None:
        if not conditioning.can_do_without:
            raise UserError(
                "this model was trained without condition_dropout and needs condition images. Give "
                "conditions.path: a folder, a .zip file or an image."
            )
        return None
    return _open(
        images,
        generator.require_condition_tokenizer(),
        generator.condition_grid_size(grid_size),
        num_images,
        conditioning.unlabelled,
        conditioning.unlabelled_class,
    )


def _pair(conditions: ImageDataset, complete: ImageDataset) -> tuple[ImageDataset, ImageDataset]:
    """Pairs both in their order, without the partners of broken files.

    Raises:
        UserError: if some files have a partner of the same name and others have no partner.
    """
    both = conditions, complete
    stems = [[PurePosixPath(images.name(i)).stem for i in range(len(images))] for images in both]
    if 1 in map(len, stems) or stems[0] == stems[1] or not {*stems[0]} & {*stems[1]}:
        return both  # one for all, pairs, or unrelated names
    unpaired = {*stems[0]} ^ {*stems[1]}
    if not any(images.images.broken for images in both):
        raise UserError(
            "conditions and images to complete must be pairs of the same name, but some have no "
            f"partner: remove {join_names(sorted(unpaired))}."
        )
    log.warning("left out because a partner is broken or missing: %s", join_names(sorted(unpaired)))
    indices = [[i for i, stem in enumerate(names) if stem not in unpaired] for names in stems]
    first, second = (
        ImageDataset(Part(images.images, indices=rest), images.transform, seed=0)
        for images, rest in zip(both, indices, strict=True)
    )
    return first, second


def _add_labels(
    inputs: SampleInputs,
    generator: ImageGenerator,
    classes: Sequence[int | str] | None,
    folder: str | Path | None,
) -> None:
    """Sets the labels; without `classes`, from the folders of the images to complete."""
    conditioning = generator.conditioning
    if not isinstance(conditioning, ClassLabel):
        if classes is not None:
            raise UserError("this model was trained without classes: leave `classes` out.")
        return
    class_names = conditioning.class_names or ()
    if classes == [NO_CLASS] and NO_CLASS not in class_names:
        conditioning.check(None, inputs.num_images)
        return
    if classes is None and inputs.complete is not None and folder is not None:
        files = [inputs.complete.name(number) for number in range(len(inputs.complete))]
        classes = _folder_classes(files, folder, class_names)
        if classes is None:
            unconditional = conditioning.can_do_without
            default = (
                "no class is requested" if unconditional else "samples use all classes in turn"
            )
            inputs.note = f"no folder is named after a class: {default}. Set `classes` to choose."
            if unconditional:
                return
    labels = conditioning.labels(range(conditioning.num_classes) if classes is None else classes)
    if not len(labels):
        raise UserError("`classes` is empty. Name a class, or leave it out to use all classes.")
    inputs.labels = labels[torch.arange(inputs.num_images) % len(labels)]


def _folder_classes(
    files: Sequence[str], path: str | Path, class_names: Sequence[str]
) -> list[str] | None:
    """Returns each image's class from its folder; None if no folder is named after a class.

    As in training, the outermost such folder below `path` counts; `path` itself comes last.

    Raises:
        UserError: if only some images have such a folder.
    """
    root = Path(path).expanduser().absolute()  # a link counts by its own name
    if root.is_file():
        root = root.parent
    classes, unclassified = [], []
    for file in files:
        folders = [*PurePosixPath(file).parts[:-1], root.name]
        name = next((name for name in folders if name in class_names), None)
        if name is None:
            unclassified.append(file)
        else:
            classes.append(name)
    if classes and unclassified:
        raise UserError(
            f"{path}: {len(unclassified)} of {len(files)} images are in no folder named after a "
            f"class, such as {unclassified[0]}. Move them, or set `classes`."
        )
    return classes or None
