"""Images, label maps and pairs from files, and what is held out for validation and testing."""

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, Protocol

from annotated_types import Ge, Gt, Le, Lt

from taming.data.dataset import ImageList, Part, naming
from taming.data.image_folder import Check, ImageFolder, report_broken
from taming.data.readers import Reader
from taming.data.transforms import check_same_shape
from taming.runtime.errors import UserError, join_names

__all__ = ["DataSource", "Fraction", "ImageFiles", "PairFiles", "check_groups", "held_out_split",
    "hold_out"]  # fmt: skip

Fraction = Annotated[float, Gt(0), Lt(1)]
Folders = tuple[ImageFolder, ImageFolder | None]  # images and their conditions

log = logging.getLogger(__name__)


class DataSource(Protocol):
    """Where the images come from; `open` finds them.

    A source of pairs also has a `condition_reader`. A source whose images have one known size has
    an `image_size`, (height, width).
    """

    @property
    def reader(self) -> Reader:
        """Reads the images."""

    def open(self) -> tuple[Part, ...]:
        """Finds and checks the images: for training, for validation and, if any, for testing."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """Images, or label maps, in a folder or `.zip` file.

    Args:
        path: a folder, a `.zip` file or an image.
        reader: reads files as pictures (`PictureReader`), label maps (`LabelMapReader`) or arrays
            (`ArrayReader`).
        val_path: the same for validation images, which must not be in `path`; None to hold out a
            share of `path`.
        val_fraction: the share to hold out, see `held_out_split`.
        test_fraction: the share of the validation images' path to set aside for testing, before
            anything else is held out; None for no test images.
        labels: where classes come from, see `taming.data.labels.find_labels`.
        group: the column of a table that names the groups of the images, see
            `taming.data.labels.find_groups`. A group is not split. None for no groups.
        subfolder: use only the images below this folder of `path` and `val_path`; None for all.
        check: how to check files at the start, see `ImageFolder.find_whole`.
        max_broken_fraction: broken files are dropped. A larger share is an error.
        scan_dir: where to save the result of checking thousands of files; None to save nothing.
    """

    path: str | Path
    reader: Reader
    val_path: str | Path | None = None
    val_fraction: Fraction = 0.05
    test_fraction: Fraction | None = None
    labels: str = "auto"
    group: str | None = None
    subfolder: str | None = None
    check: Check = "auto"
    max_broken_fraction: Annotated[float, Ge(0), Le(1)] = 0.2
    scan_dir: str | Path | None = None

    def open(self) -> tuple[Part, ...]:
        """Finds the images and checks the files.

        Raises:
            UserError: if there are no images, too many are broken, or validation images or their
                groups are among the training images.
        """
        train = self._find(self.path)
        if self.val_path is None:
            self._drop_broken(*train)
            return hold_out(Part(*train), self.val_fraction, self.test_fraction)
        val = self._find(self.val_path, train[0].class_names)
        if shared := train[0].folders() & val[0].folders():
            raise UserError(
                f"images of data.val_path={self.val_path} are also in data.path={self.path}, such "
                f"as the images in {min(shared)}. Move them out of there, or leave data.val_path "
                "out, so that data.val_fraction of the images is held out."
            )
        check_groups(train[0], val[0])
        self._drop_broken(*val)
        self._drop_broken(*train)
        return Part(*train), *hold_out(Part(*val), self.test_fraction)

    def _find(self, path: str | Path, known_classes: list[str] | None = None) -> Folders:
        """Lists the images without reading them."""
        images = ImageFolder(
            path,
            self.reader,
            labels=self.labels,
            group=self.group,
            known_classes=known_classes,
            subfolder=self.subfolder,
            max_broken_fraction=self.max_broken_fraction,
        )
        return images, None

    def _drop_broken(self, images: ImageFolder, conditions: ImageFolder | None) -> None:
        images.drop_broken(self.check, scan_dir=self.scan_dir)


@dataclass(frozen=True, kw_only=True)
class PairFiles(ImageFiles):
    """Pairs of an image and its condition, matched by name.

    `image/street/1.jpg` and `label/street/1.png` are a pair: the paths below the two folders are
    the same up to the suffix. Files without a partner, or whose partner is broken, are dropped, and
    the log counts and names them.

    Args:
        condition_reader: reads the conditions, label maps or pictures.
        subfolder: the folder of the images in `path` and `val_path`.
        condition_folder: the folder of the conditions.
        max_broken_fraction: of the pairs; a pair is broken if either file is.
    """

    condition_reader: Reader
    labels: str = "none"
    subfolder: str | None = "image"
    condition_folder: str = "label"

    def _find(self, path: str | Path, known_classes: list[str] | None = None) -> Folders:
        images, _ = super()._find(path, known_classes)
        conditions = ImageFolder(
            path,
            self.condition_reader,
            subfolder=self.condition_folder,
            max_broken_fraction=self.max_broken_fraction,
        )
        image_of = _by_stem(images, self.subfolder)
        condition_of = _by_stem(conditions, self.condition_folder)
        pairs = [stem for stem in image_of if stem in condition_of]
        if not pairs:
            raise UserError(
                f"{images.description}: no image (such as {images.name(0)}) has the name of a "
                f"condition (such as {conditions.name(0)}). Paths below the two folders must be "
                "the same up to the suffix."
            )
        alone = [images.name(i) for stem, i in image_of.items() if stem not in condition_of]
        alone += [conditions.name(i) for stem, i in condition_of.items() if stem not in image_of]
        if alone:
            dropped = f"{len(alone)} files have no partner and are dropped ({join_names(alone)})"
            log.warning("%s: %s; %d pairs remain", images.description, dropped, len(pairs))
        images.select([image_of[stem] for stem in pairs])
        conditions.select([condition_of[stem] for stem in pairs])
        return images, conditions

    def _drop_broken(self, images: ImageFolder, conditions: ImageFolder | None) -> None:
        assert conditions is not None
        num_pairs = len(images)
        whole = set(images.find_whole(self.check, scan_dir=self.scan_dir))
        whole &= set(conditions.find_whole(self.check, scan_dir=self.scan_dir))
        num_broken = num_pairs - len(whole)
        what = f"{images.description}: {num_broken} of {num_pairs} pairs are broken"
        broken = images.broken + conditions.broken
        report_broken(what, broken, num_broken / num_pairs, self.max_broken_fraction)
        images.select(sorted(whole))
        conditions.select(sorted(whole))
        for index, sizes in enumerate(zip(images.sizes or [], conditions.sizes or [], strict=True)):
            with naming(images.name(index)):
                check_same_shape(*sizes)


def _by_stem(side: ImageFolder, folder: str | None) -> dict[PurePosixPath, int]:
    numbers: dict[PurePosixPath, int] = {}
    for index in range(len(side)):
        stem = PurePosixPath(side.name(index)).relative_to(folder or "").with_suffix("")
        if stem in numbers:
            raise UserError(
                f"{side.description}: {side.name(numbers[stem])} and {side.name(index)} have the "
                "same name. Remove one, so that it is clear which is the partner."
            )
        numbers[stem] = index
    return numbers


def check_groups(train: ImageList, val: ImageList) -> None:
    """Raises a `UserError` if a group has images in both lists."""
    if shared := sorted(set(train.groups) & set(val.groups)):
        raise UserError(
            f"{len(shared)} groups have images in {train.description} and in {val.description} "
            f"({join_names(shared)}). Move the images of a group to one side, or set "
            "data.source.group=null."
        )


def hold_out(whole: Part, *fractions: float | None) -> tuple[Part, ...]:
    """Splits images into the rest and a part for each fraction (see `held_out_split`).

    The last fraction is held out first, and the others are shares of what remains. None makes no
    part. The log warns if nothing can be held out.
    """
    images, rest, parts = whole.images, whole, list[Part]()
    for fraction in filter(None, reversed(fractions)):
        indices = list(range(len(images))) if rest.indices is None else rest.indices
        remaining, held_out = held_out_split(
            [images.name(i) for i in indices],
            [images.label(i) for i in indices],
            fraction,
            [images.groups[i] for i in indices] if images.groups else (),
        )
        if remaining == held_out:
            log.warning(
                "note: no image can be held out, because each class has only one image or group. "
                "Validation uses the training images, so its metrics say nothing about new "
                "images. Add images, or set data.val_path."
            )
        parts.insert(0, whole._replace(indices=[indices[i] for i in held_out]))
        rest = whole._replace(indices=[indices[i] for i in remaining])
    return rest, *parts


def held_out_split(
    names: Sequence[str],
    labels: Sequence[int | None],
    fraction: float,
    groups: Sequence[str] = (),
) -> tuple[list[int], list[int]]:
    """Splits items into training and validation, the same way for every seed and machine.

    round(fraction · n) items are held out, at least one. Each class gives its share, rounded by the
    largest remainders, but never its last item. The items with the smallest hashes of their names
    are held out, so new images move few others from one side to the other.

    With groups, the groups with the smallest hashes are held out whole, as long as none of their
    classes exceeds its share. If many items are then missing, because the groups are larger than
    the shares, the smallest of the other groups follow, at least one group in all.

    Args:
        names: n unique names.
        labels: the class of each item, or None.
        fraction: the share to hold out, between 0 and 1.
        groups: the group of each item; empty if each item is on its own.

    Returns:
        Indices for training and for validation, both ascending. Both are all items if nothing can
        be held out because each class has only one item or group.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups or names):
        members[group].append(index)
    sizes = Counter(labels)
    total = max(1, round(fraction * len(names)))
    quotas = dict(zip(sizes, _quotas(list(sizes.values()), total), strict=True))
    spare = {label: size - 1 for label, size in sizes.items()}  # training keeps one of each class
    missing = sum(quotas.values())
    held_out: dict[str, list[int]] = {}

    def hold_out_group(group: str, limits: dict[int | None, int]) -> int:
        classes = [labels[index] for index in members[group]]
        if any(classes.count(label) > limits[label] for label in set(classes)):
            return 0
        for label in classes:
            quotas[label] -= 1
            spare[label] -= 1
        held_out[group] = members[group]
        return len(members[group])

    order = sorted(members, key=_digest)
    for group in order:
        if not missing:
            break
        missing -= hold_out_group(group, quotas)
    if missing or not held_out:
        for group in sorted(order, key=lambda group: len(members[group])):
            brings_closer = len(members[group]) < 2 * missing
            if group not in held_out and (brings_closer or not held_out):
                missing -= hold_out_group(group, spare)
    everything = range(len(names))
    indices = sorted(chain.from_iterable(held_out.values()))
    return sorted(set(everything) - set(indices)), indices or list(everything)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()


def _quotas(sizes: list[int], total: int) -> list[int]:
    """Divides `total` in proportion to `sizes` by largest remainder, and leaves one of each."""
    num_items = sum(sizes)
    quotas = [min(size * total // num_items, size - 1) for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda i: -(sizes[i] * total % num_items))
    can_give = [i for i in by_remainder if quotas[i] + 1 < sizes[i]]
    for i in can_give[: total - sum(quotas)]:
        quotas[i] += 1
    return quotas
