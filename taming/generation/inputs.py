"""The inputs of sampling: classes, condition images, images to complete or to paint in."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch
import torch.nn.functional as F
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

__all__ = ["ImagesToComplete", "InputImages", "Painting", "SampleInputs", "find_inputs"]

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


Sides = tuple[int, int, int, int]


@dataclass(frozen=True)
class ImagesToComplete(InputImages):
    """Where images to complete are, and what to keep of them.

    A model of any order paints in the union of `mask`, `region` and what the images `grow` by.
    """

    keep_rows: int | None = (
        None  # rows of codes; None: half of the rows, unless a region is painted
    )
    # a picture, or a folder or .zip file with one of the same name for each image; white: paint
    mask: str | Path | None = None
    region: Sides | None = None  # to paint: (top, left, bottom, right) in pixels
    grow: Sides | None = None  # pixels to add at (top, left, bottom, right)
    paste: bool = True  # put the given pixels around the painted region back

    @property
    def paints(self) -> bool:
        """Whether there is a region to paint, so that not just the first rows are kept."""
        return (self.mask, self.region, self.grow) != (None, None, None)


@dataclass
class SampleInputs:
    """The inputs of each sample. Samples take the images in turn."""

    num_images: int
    labels: Tensor | None = None  # (num_images,) int64; None: no class is requested
    conditions: ImageDataset | None = None
    complete: ImageDataset | None = None  # images to complete
    keep_rows: int = 0  # rows of codes; 0 if a region is painted
    painting: "Painting | None" = None  # where to paint; None: below the rows to keep
    note: str | None = None  # for the user

    def condition(self, numbers: range) -> Tensor | None:
        """Returns `(b,)` labels, `(b c H W)` images, or None for no condition."""
        if self.conditions is not None:
            return _batch(self.conditions, numbers)
        return None if self.labels is None else self.labels[numbers.start : numbers.stop]

    def to_complete(self, numbers: range) -> Tensor | None:
        """Returns `(b c H W)`, as large as the samples; None without images to complete."""
        if self.complete is None:
            return None
        images = _batch(self.complete, numbers)
        return images if self.painting is None else self.painting.grown(images)

    def mask(self, numbers: range) -> Tensor | None:
        """Returns `(b H W)`, True where to paint; None unless a region is painted."""
        if self.complete is None or self.painting is None:
            return None
        names = [self.complete.name(number % len(self.complete)) for number in numbers]
        return self.painting.mask(names, self.complete.transform.size)

    def name(self, number: int) -> str | None:
        """Returns the file name of an image's condition, or else of the image to complete."""
        source = self.complete if self.conditions is None else self.conditions
        return None if source is None else source.name(number % len(source))


@dataclass(frozen=True)
class Painting:
    """Where to paint in each image."""

    masks: ImageDataset | None  # one for all, or one of the same name for each image
    region: Sides | None
    grow: Sides  # (top, left, bottom, right) in pixels

    def grown(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Pads `(… H W)` by the pixels that the images grow by."""
        top, left, bottom, right = self.grow
        return F.pad(values, (left, right, top, bottom), value=fill)

    def mask(self, names: Sequence[str], size: tuple[int, int]) -> Tensor:
        """Returns `(b H W)` for images of these names; `size` is theirs before they grow."""
        mask = torch.zeros(len(names), *size)
        if self.masks is not None:
            pictures = [self.masks[number]["images"] for number in self.numbers(names)]
            mask = (torch.cat(pictures) > 0).float()  # (b H W)
        if self.region is not None:
            top, left, bottom, right = self.region
            mask[:, top:bottom, left:right] = 1
        return self.grown(mask, 1.0) > 0

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Returns the number of each image's mask.

        Raises:
            UserError: if an image has none.
        """
        assert self.masks is not None
        if len(self.masks) == 1:
            return [0] * len(names)
        stems = [PurePosixPath(self.masks.name(i)).stem for i in range(len(self.masks))]
        own = [PurePosixPath(name).stem for name in names]
        if missing := sorted(set(own) - set(stems)):
            raise UserError(
                f"complete.mask: no mask for {join_names(missing)}. Give one mask for all images, "
                "or a folder with a mask of the same name for each."
            )
        return [stems.index(stem) for stem in own]


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
        inputs.complete = _open(complete, tokenizer, grid_size, num_images)
        if complete.paints:
            inputs.painting = _open_painting(generator, complete, inputs.complete)
        else:
            height = grid_size[0]
            inputs.keep_rows = height // 2 if complete.keep_rows is None else complete.keep_rows
            check_keep_rows(inputs.keep_rows, height)
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


def _open_painting(
    generator: ImageGenerator, complete: ImagesToComplete, images: ImageDataset
) -> Painting:
    """Checks where to paint, and opens the masks."""
    generator.require_any_order()
    if complete.keep_rows is not None:
        raise UserError(
            "give complete.keep_rows, or a mask, region or grow. They exclude each other."
        )
    (height, width), factor = images.transform.size, generator.require_tokenizer().downsample_factor
    if complete.region is not None:
        top, left, bottom, right = complete.region
        if not (0 <= top < bottom <= height and 0 <= left < right <= width):
            raise UserError(
                f"complete.region is {list(complete.region)}. Give [top, left, bottom, right] in "
                f"pixels within {height}×{width}, the size of the images for this model."
            )
    grow = complete.grow or (0, 0, 0, 0)
    if min(grow) < 0 or any(side % factor for side in grow):
        raise UserError(
            f"complete.grow is {list(grow)}. Give the pixels to add at [top, left, bottom, right], "
            f"multiples of {factor}."
        )
    masks = None
    if complete.mask is not None:
        source = ImageFolder(complete.mask, PictureReader(1))
        source.drop_broken("full")
        masks = ImageDataset(Part(source), images.transform, seed=0)
    painting = Painting(masks, complete.region, grow)
    if masks is not None:
        painting.numbers([images.name(number) for number in range(len(images))])
    return painting


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
