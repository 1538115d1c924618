"""Class labels from the folders that images lie in."""

import logging
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Literal

from taming.data.files import natural_key, some
from taming.errors import UserError

__all__ = ["LabelMode", "folder_labels"]

log = logging.getLogger(__name__)

LabelMode = Literal["auto", "folders", "none"]

SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "test", "testing"}


def folder_labels(
    names: Sequence[str], mode: LabelMode, source: str, known: Sequence[str] | None = None
) -> tuple[list[str], list[int | None]]:
    """Derives classes from folder names.

    The folders at the first level where the paths differ are the classes, so that
    `photos/cat/1.jpg`, `photos/dog/2.jpg` and the same without `photos/` give `cat` and `dog`.
    Folders inside a class folder belong to it.

    Args:
        names: paths relative to the data's root, with forward slashes.
        mode: `auto` takes classes if every image lies in a class folder, and there are two or more;
            `folders` insists on it (one is enough); `none` takes none.
        source: the data's root, for messages.
        known: classes of the training data, which these must be among; None to find them. If
            empty, there are no classes.

    Returns:
        Class names in natural order, empty if there are none; the label of each image, None
        without.

    Raises:
        UserError: if `folders` finds images outside class folders, if the classes look like `train`
            and `val`, or if a class is not a known one.
    """
    unlabelled: tuple[list[str], list[int | None]] = [], [None] * len(names)
    folders = [PurePosixPath(name).parts[:-1] for name in names]
    if mode == "none" or known == []:
        return unlabelled
    if known:
        return list(known), _known_labels(folders, known, source)
    level = _class_level(folders, one_is_enough=mode == "folders")
    stray = [name for name, parts in zip(names, folders, strict=True) if len(parts) <= level]
    if stray and mode == "folders":
        raise UserError(
            f"{source}: labels=folders needs every image in a class folder; {len(stray)} are not, "
            f"such as {stray[0]}. Move them, or set labels=none."
        )
    if stray:
        if len(stray) < len(names):
            log.info(
                "note: %s: no classes, for %d of %d images lie in no class folder, such as %s. "
                "Move those away for classes.",
                source,
                len(stray),
                len(names),
                stray[0],
            )
        return unlabelled
    classes = sorted({parts[level] for parts in folders}, key=natural_key)
    if {name.lower() for name in classes} <= SPLIT_NAMES:
        raise UserError(
            f"{source}: the folders {', '.join(classes)} look like a split, not like classes. "
            "Give one of them as data.path and another as data.val_path, or set labels=none."
        )
    number = {name: i for i, name in enumerate(classes)}
    return classes, [number[parts[level]] for parts in folders]


def _known_labels(
    folders: Sequence[tuple[str, ...]], known: Sequence[str], source: str
) -> list[int | None]:
    number = {name: i for i, name in enumerate(known)}
    for level in range(min(map(len, folders))):
        if all(parts[level] in number for parts in folders):
            return [number[parts[level]] for parts in folders]
    level = _class_level(folders, one_is_enough=True)
    found = {parts[level] if len(parts) > level else "no folder" for parts in folders}
    raise UserError(
        f"{source}: {some(sorted(found - set(known), key=natural_key))} is not a class of the "
        f"training data, which has {some(list(known))}. Every validation image must lie in a "
        "folder named like one; or set labels=none."
    )


def _class_level(folders: Sequence[tuple[str, ...]], one_is_enough: bool) -> int:
    """Counts the leading folders all paths share; one may be left as the only class."""
    first, last = min(folders), max(folders)
    level = 0
    while level < min(len(first), len(last)) and first[level] == last[level]:
        level += 1
    everything_in_one = level > 0 and any(len(parts) == level for parts in folders)
    return level - 1 if one_is_enough and everything_in_one else level
