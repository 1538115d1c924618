"""Training and validation data on disk: pictures, label maps, and pairs; what is held out."""

import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from taming.data.dataset import Part
from taming.data.files import some
from taming.data.image_folder import Check, ImageFolder, LabelMode
from taming.data.images import Reader
from taming.data.transforms import check_same_shape
from taming.errors import UserError

__all__ = ["DataSource", "ImageFiles", "ImagesOfPairs", "PairFiles", "held_out_split", "hold_out"]

log = logging.getLogger(__name__)


class DataSource(Protocol):
    """Where training and validation images come from; what `ImageDataModule` takes.

    Pairs also have a `condition_reader`. A source of images of one size may give it as
    `image_size`, (height, width), so that settings are checked before anything is read.
    """

    @property
    def reader(self) -> Reader:
        """Reads the images."""

    def open(self) -> tuple[Part, Part]:
        """Finds and checks the images for training and for validation."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """Pictures, or label maps, in a folder or `.zip` file.

    Args:
        path: a folder, a `.zip` file or an image.
        reader: from files to pictures (`PictureReader`) or label maps (`LabelMapReader`).
        val_path: as `path`, of validation images, which must not be in `path`; None to hold some of
            `path` out.
        val_fraction: share to hold out, see `held_out_split`.
        labels: whether folders are classes, see `taming.data.image_folder.folder_labels`.
        subfolder: take only the images below this folder of `path` and `val_path`; None for all.
        check: how files are checked at the start, see `ImageFolder.drop_broken`.
        max_broken_fraction: broken files are left out; a larger share of them is an error.
    """

    path: str | Path
    reader: Reader
    val_path: str | Path | None = None
    val_fraction: float = 0.05
    labels: LabelMode = "auto"
    subfolder: str | None = None
    check: Check = "auto"
    max_broken_fraction: float = 0.2

    def open(self) -> tuple[Part, Part]:
        """Finds the images and checks the files.

        Raises:
            UserError: if there is nothing to read, too much of it is broken, or validation images
                are among the training images.
        """
        if self.val_path is None:
            _check_fraction(self.val_fraction)
            train = self._find(self.path)
            self._drop_broken(train)
            return hold_out(train, self.val_fraction)
        train = self._find(self.path)
        val = self._find(self.val_path, train.source.class_names)
        if shared := _folders(train, self.path) & _folders(val, self.val_path):
            raise UserError(
                f"images of data.val_path={self.val_path} are also in data.path={self.path}, such "
                f"as those in {min(shared)}: validation must not see training images. Move them "
                "out of there, or leave data.val_path out, so that data.val_fraction of the images "
                "is held out."
            )
        self._drop_broken(val)
        self._drop_broken(train)
        return train, val

    def _find(self, path: str | Path, known_classes: list[str] | None = None) -> Part:
        return Part(
            ImageFolder(
                path,
                self.reader,
                labels=self.labels,
                known_classes=known_classes,
                subfolder=self.subfolder,
                max_broken_fraction=self.max_broken_fraction,
            )
        )

    def _drop_broken(self, part: Part) -> None:
        assert isinstance(part.source, ImageFolder)
        part.source.drop_broken(self.check)


@dataclass(frozen=True, kw_only=True)
class PairFiles(ImageFiles):
    """Images and what they are to be made from, paired by name.

    `image/street/1.jpg` and `label/street/1.png` are a pair: the paths below the two folders are
    the same up to the suffix. Files without partner, or whose partner is broken, are left out,
    counted and named in the log.

    Args:
        condition_reader: reads the conditions, label maps or pictures.
        subfolder, condition_folder: where in `path` and `val_path` images and conditions are.
    """

    condition_reader: Reader
    labels: LabelMode = "none"
    subfolder: str | None = "image"
    condition_folder: str = "label"

    def _find(self, path: str | Path, known_classes: list[str] | None = None) -> Part:
        part = super()._find(path)
        images = part.source
        conditions = ImageFolder(
            path,
            self.condition_reader,
            subfolder=self.condition_folder,
            max_broken_fraction=self.max_broken_fraction,
        )
        first = images.name(0), conditions.name(0)
        part = part._replace(conditions=conditions)
        alone = self._pair_up(part)
        if not len(images):
            raise UserError(
                f"{images.description}: no image, such as {first[0]}, has a condition of the same "
                f"name, such as {first[1]}. Paths below the two folders must be the same up to the "
                "suffix."
            )
        if alone:
            log.warning(
                "%s: %d files have no partner and are left out (%s); %d pairs are left",
                images.description,
                len(alone),
                some(alone),
                len(images),
            )
        return part

    def _drop_broken(self, part: Part) -> None:
        images, conditions, num_pairs = part.source, part.conditions, len(part.source)
        assert isinstance(images, ImageFolder) and isinstance(conditions, ImageFolder)
        images.drop_broken(self.check)
        conditions.drop_broken(self.check)
        self._pair_up(part)
        num_lost = num_pairs - len(images)
        if num_lost > self.max_broken_fraction * num_pairs or num_lost == num_pairs:
            names = [name for name, _ in images.broken + conditions.broken]
            raise UserError(
                f"{images.description}: of {num_lost} of {num_pairs} pairs a file is broken, more "
                f"than max_broken_fraction={self.max_broken_fraction:g} allows ({some(names)}). "
                "Repair or remove them, or raise it."
            )
        for index, sizes in enumerate(zip(images.sizes or [], conditions.sizes or [], strict=True)):
            check_same_shape(*sizes, images.name(index))

    def _pair_up(self, part: Part) -> list[str]:
        """Keeps the pairs only, in the images' order; returns the names of the other files."""
        images, conditions = part.source, part.conditions
        assert isinstance(images, ImageFolder) and isinstance(conditions, ImageFolder)
        ours, theirs = _by_stem(images, self.subfolder), _by_stem(conditions, self.condition_folder)
        alone = [images.name(i) for stem, i in ours.items() if stem not in theirs]
        alone += [conditions.name(i) for stem, i in theirs.items() if stem not in ours]
        stems = [stem for stem in ours if stem in theirs]
        images.keep([ours[stem] for stem in stems])
        conditions.keep([theirs[stem] for stem in stems])
        return alone


@dataclass(frozen=True)
class ImagesOfPairs:
    """The images of pairs without their conditions: the same images in the same order."""

    pairs: PairFiles

    @property
    def reader(self) -> Reader:
        """Reads the images."""
        return self.pairs.reader

    def open(self) -> tuple[Part, Part]:
        """Finds and checks the pairs, and leaves their conditions alone after that."""
        train, val = self.pairs.open()
        return train._replace(conditions=None), val._replace(conditions=None)


def _by_stem(side: ImageFolder, folder: str | None) -> dict[PurePosixPath, int]:
    found: dict[PurePosixPath, int] = {}
    for index in range(len(side)):
        path = PurePosixPath(side.name(index)).relative_to(str(folder or "").strip("/"))
        stem = path.with_suffix("")
        if stem in found:
            raise UserError(
                f"{side.description}: {side.name(found[stem])} and {side.name(index)} have the "
                "same name, so that it is not clear which of them is the partner. Remove one."
            )
        found[stem] = index
    return found


def _folders(part: Part, path: str | Path) -> set[str]:
    """Where the images of a part lie, links followed; a folder's images are all in it."""
    source = part.source
    names = {source.name(i).rpartition("/")[0] for i in range(len(source))}
    return {os.path.realpath(Path(path).expanduser() / name) for name in names}


def hold_out(whole: Part, fraction: float) -> tuple[Part, Part]:
    """Splits images into training and validation (see `held_out_split`); warns if it cannot."""
    source = whole.source
    names = [source.name(i) for i in range(len(source))]
    labels = [source.label(i) for i in range(len(source))]
    train, val = held_out_split(names, labels, fraction)
    if train == val:
        log.warning(
            "note: no image can be held out (each is the last of its class), so validation is on "
            "the training images: its numbers say nothing about new ones. Give more images, or a "
            "data.val_path."
        )
    return whole._replace(indices=train), whole._replace(indices=val)


def held_out_split(
    names: Sequence[str], labels: Sequence[int | None], fraction: float
) -> tuple[list[int], list[int]]:
    """Splits items into training and validation, the same way whatever the seed and the machine.

    round(fraction · n) items are held out, but one at least, each class giving its share (largest
    remainders first) but never its last item. Within a class the items with the smallest hash of
    their name go, so adding images to the set moves few of the others from one side to the other.

    Args:
        names: unique names, n of them.
        labels: the class of each, or None.
        fraction: share to hold out, between 0 and 1.

    Returns:
        Indices for training and for validation, both ascending. Where each class has but one item
        nothing can be held out, and both are all items.

    Raises:
        UserError: if the fraction is out of range.
    """
    _check_fraction(fraction)
    classes: dict[int | None, list[int]] = {}
    for index, label in enumerate(labels):
        classes.setdefault(label, []).append(index)
    total = max(1, round(fraction * len(names)))
    quotas = _quotas([len(members) for members in classes.values()], total)
    held_out: set[int] = set()
    for members, quota in zip(classes.values(), quotas, strict=True):
        held_out.update(sorted(members, key=lambda index: _hash(names[index]))[:quota])
    everything = range(len(names))
    return sorted(set(everything) - held_out), sorted(held_out or everything)


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise UserError(
            f"data.val_fraction is {fraction}: give the share to hold out for validation, above 0 "
            "and below 1 (or name a folder of validation images with data.val_path)."
        )


def _quotas(sizes: list[int], total: int) -> list[int]:
    """Shares `total` out in proportion to `sizes` by largest remainder, leaving one of each."""
    num_items = sum(sizes)
    quotas = [min(size * total // num_items, size - 1) for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda i: -(sizes[i] * total % num_items))
    can_give = [i for i in by_remainder if quotas[i] + 1 < sizes[i]]
    for i in can_give[: total - sum(quotas)]:
        quotas[i] += 1
    return quotas


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()
