"""The classes of images in files, by their folders or by a table."""

import csv
import io
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from taming.data.files import FileList, natural_key
from taming.runtime.errors import MissingPathError, UserError, join_names

__all__ = ["Labels", "find_labels", "folder_labels", "number_classes"]

SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "test", "testing"}

Labels = tuple[list[str], list[int | None]]  # class names; the number of each image's class

log = logging.getLogger(__name__)


def find_labels(
    files: FileList, names: Sequence[str], labels: str, known: Sequence[str] | None = None
) -> Labels:
    """Returns the class names and the label of each image.

    Args:
        files: what the images are part of.
        names: the images' names among them.
        labels: `auto`, `folders`, which insists on them, see `folder_labels`, or `none`; or a
            table: a `.csv` with columns `file_name` and `label`, or a `.json`, `{"a/1.png": "cat",
            ...}` or, as StyleGAN writes it, `{"labels": [["a/1.png", 0], ...]}`. It is looked for
            beside the images first, then from the working directory.
        known: classes of the training data, which these must be among; None to find them. If
            empty, there are no classes.

    Raises:
        MissingPathError: if there is no such table.
        UserError: if it cannot be read or lacks an image, or a class is not a known one.
    """
    if labels == "none" or known == []:
        return [], [None] * len(names)
    if labels not in ("auto", "folders"):
        found = _table_classes(files, names, labels)
        return number_classes(found, known, f"{files.path}, {labels}")
    if (in_shards := files.classes()) is not None:
        return number_classes(in_shards, known, f"{files.path}, .cls and .json files")
    return folder_labels(names, str(files.path), known, insist=labels == "folders")


def number_classes(found: Sequence[str], known: Sequence[str] | None, source: str) -> Labels:
    """Returns the class names, in natural order unless they are known, and each image's label.

    Raises:
        UserError: if one of the classes found is not a known one.
    """
    classes = sorted(set(found), key=natural_key) if known is None else list(known)
    if unknown := sorted(set(found) - set(classes), key=natural_key):
        raise UserError(
            f"{source}: {join_names(unknown)} is not a class of the training data, which has "
            f"{join_names(classes)}. Every validation image must be of one of these; or set "
            "labels=none, where images are files."
        )
    number = {name: i for i, name in enumerate(classes)}
    return classes, [number[name] for name in found]


def _table_classes(files: FileList, names: Sequence[str], labels: str) -> list[str]:
    table = _read_table(_table_content(files, labels), labels)
    missing = [name for name in names if name not in table]
    if missing:
        example = next(iter(table), "nothing")
        raise UserError(
            f"{files.path}: {labels} has no label for {len(missing)} of {len(names)} images, such "
            f"as {missing[0]}: add them (it names images from {files.path} on, and has {example})."
        )
    return [table[name] for name in names]


def _table_content(files: FileList, path: str) -> bytes:
    try:
        with suppress(OSError, KeyError), files.open_other(path) as file:
            return file.read()
        with suppress(OSError), Path(path).expanduser().open("rb") as file:  # not beside the images
            return file.read()
    except Exception as error:  # a damaged archive makes zipfile raise nearly anything
        raise UserError(f"{files.path}: {path} cannot be read ({error}).") from error
    raise MissingPathError(
        f"labels={path} is no file in {files.path} or {Path.cwd()}. Give auto, folders, none, or a "
        ".csv or .json file."
    )


def _read_table(content: bytes, path: str) -> dict[str, str]:
    """Returns the label of each file name."""
    try:
        text = content.decode("utf-8-sig")  # Excel writes a mark first
        if path.lower().endswith(".json"):
            table = json.loads(text)
            table = table.get("labels", table) if isinstance(table, dict) else table
            pairs = list(table.items()) if isinstance(table, dict) else table
        else:
            rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
            columns = rows.fieldnames or ()
            if text and not {"file_name", "label"} <= set(columns):
                raise ValueError(f"its columns are {', '.join(columns)}")
            pairs = [(row["file_name"], row["label"]) for row in rows]
        labels: dict[str, str] = {}
        for name, label in pairs:
            if label not in (None, ""):
                file_name = PurePosixPath(name.replace("\\", "/")).as_posix()
                if labels.setdefault(file_name, str(label)) != str(label):
                    raise ValueError(f"{name} is {labels[file_name]} and {label}")
        return labels
    except Exception as error:  # odd content leads to anything
        raise UserError(
            f"{path} is not a table of labels ({type(error).__name__}: {error}). A .csv has the "
            'columns file_name and label; a .json is {"a/1.png": "cat", ...} or '
            '{"labels": [["a/1.png", 0], ...]}.'
        ) from error


def folder_labels(
    names: Sequence[str], source: str, known: Sequence[str] | None = None, *, insist: bool = False
) -> Labels:
    """Derives classes from folder names.

    The folders at the first level where the paths differ are the classes, so that
    `photos/cat/1.jpg`, `photos/dog/2.jpg` and the same without `photos/` give `cat` and `dog`.
    Folders inside a class folder belong to it.

    Args:
        names: paths relative to the data's root, with forward slashes.
        source: the data's root, for messages.
        known: classes of the training data, which these must be among; None to find them.
        insist: one class is enough, but every image must lie in a class folder, as with known
            classes; otherwise there are no classes unless there are two, for every image.

    Returns:
        Class names in natural order, empty if there are none; the label of each image, or None.

    Raises:
        UserError: if images lie outside class folders that must lie in them, if the classes look
            like `train` and `val`, or if a class is not a known one.
    """
    folders = [tuple(name.split("/")[:-1]) for name in names]
    insist = insist or known is not None
    level = _class_level(folders, one_is_enough=insist)
    if known is not None:  # the first level where all are known
        levels = range(min(map(len, folders)))
        level = next((i for i in levels if {parts[i] for parts in folders} <= {*known}), level)
    stray = [name for name, parts in zip(names, folders, strict=True) if len(parts) <= level]
    if stray:
        found = f"{len(stray)} of {len(names)} images lie in no class folder, such as {stray[0]}"
        if insist:
            raise UserError(f"{source}: {found}. Move them, or set labels=none.")
        if len(stray) < len(names):
            log.info("note: %s: no classes, for %s: move them away", source, found)
        return [], [None] * len(names)
    classes, labels = number_classes([parts[level] for parts in folders], known, source)
    if {name.lower() for name in classes} <= SPLIT_NAMES:
        raise UserError(
            f"{source}: the folders {', '.join(classes)} look like a split, not like classes. "
            "Give one of them as data.path and another as data.val_path, or set labels=none."
        )
    return classes, labels


def _class_level(folders: Sequence[tuple[str, ...]], one_is_enough: bool) -> int:
    """Counts the leading folders all paths share; one may be left as the only class."""
    first, last = min(folders), max(folders)
    level = 0
    while level < min(len(first), len(last)) and first[level] == last[level]:
        level += 1
    everything_in_one = level > 0 and any(len(parts) == level for parts in folders)
    return level - 1 if one_is_enough and everything_in_one else level
