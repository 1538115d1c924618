"""Training and validation data on disk: pictures, label maps, and pairs."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from taming.data.files import some
from taming.data.image_folder import Check, ImageFolder
from taming.data.images import Reader
from taming.data.labels import LabelMode
from taming.data.split import Part, check_fraction, hold_out
from taming.data.transforms import check_same_shape
from taming.errors import UserError

__all__ = ["DataSource", "ImageFiles", "ImagesOfPairs", "PairFiles"]

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
        labels: whether folders are classes, see `taming.data.labels.folder_labels`.
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
        train = self._find(self.path)
        if self.val_path is None:
            check_fraction(self.val_fraction)  # before the images are read, which takes time
            self._drop_broken(train)
            return hold_out(train, self.val_fraction)
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
        images, conditions = (
            part.source,
            ImageFolder(
                path,
                self.condition_reader,
                subfolder=self.condition_folder,
                max_broken_fraction=self.max_broken_fraction,
            ),
        )
        assert isinstance(images, ImageFolder)
        first = images.name(0), conditions.name(0)
        alone = self._pair_up(images, conditions)
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
        return part._replace(conditions=conditions)

    def _drop_broken(self, part: Part) -> None:
        images, conditions = part.source, part.conditions
        assert isinstance(images, ImageFolder) and isinstance(conditions, ImageFolder)
        num_pairs = len(images)
        images.drop_broken(self.check)
        conditions.drop_broken(self.check)
        self._pair_up(images, conditions)
        num_lost = num_pairs - len(images)
        if num_lost > self.max_broken_fraction * num_pairs or num_lost == num_pairs:
            names = [name for name, _ in images.broken + conditions.broken]
            raise UserError(
                f"{images.description}: of {num_lost} of {num_pairs} pairs a file is broken, more "
                f"than max_broken_fraction={self.max_broken_fraction:g} allows ({some(names)}). "
                "Repair or remove them, or raise it."
            )
        if images.sizes is not None and conditions.sizes is not None:
            for index, sizes in enumerate(zip(images.sizes, conditions.sizes, strict=True)):
                check_same_shape(*sizes, images.name(index))

    def _pair_up(self, images: ImageFolder, conditions: ImageFolder) -> list[str]:
        """Keeps the pairs only, in the images' order; returns the names of the other files."""
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
        train, val = (part._replace(conditions=None) for part in self.pairs.open())
        return train, val


def _by_stem(side: ImageFolder, folder: str | None) -> dict[PurePosixPath, int]:
    found: dict[PurePosixPath, int] = {}
    for index in range(len(side)):
        path = PurePosixPath(side.name(index)).relative_to(str(folder or "").strip("/"))
        if path.with_suffix("") in found:
            raise UserError(
                f"{side.description}: {side.name(found[path.with_suffix('')])} and "
                f"{side.name(index)} have the same name, so that it is not clear which of them is "
                "the partner. Remove one."
            )
        found[path.with_suffix("")] = index
    return found


def _folders(part: Part, path: str | Path) -> set[str]:
    """Where the images of a part lie, links followed; a folder's images are all in it."""
    source = part.source
    names = {source.name(i).rpartition("/")[0] for i in range(len(source))}
    return {os.path.realpath(Path(path).expanduser() / name) for name in names}
