"""The classes and groups of image files, from their folders or from a table."""

import csv
import io
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from taming.data.files import FileList, natural_key
from taming.runtime.errors import MissingPathError, UserError, join_names

__all__ = ["Labels", "find_groups", "find_labels", "folder_labels", "number_classes"]

GROUP_TABLE = "metadata.csv"  # unless the classes come from another table
SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "test", "testing"}

Labels = tuple[list[str], list[int | None]]  # class names; the class number of each image

log = logging.getLogger(__name__)


def find_labels(
    files: FileList, names: Sequence[str], labels: str, known_classes: Sequence[str] | None = None
) -> Labels:
    """Returns the class names and the class number of each image.

    Args:
        files: the images.
        names: their names.
        labels: `auto` or `folders`, see `folder_labels`; `none`; or a table. A table is a `.csv`
            with the columns `file_name` and `label`, or a `.json`, `{"a/1.png": "cat", ...}` or in
            StyleGAN's form `{"labels": [["a/1.png", 0], ...]}`. Its path is relative to the images
            or to the working directory.
        known_classes: the class names of the training data, which may not be extended; None to
            find them. An empty list means no classes.

    Raises:
        MissingPathError: if the table does not exist.
        UserError: if the table cannot be read or lacks an image, or a class is unknown.
    """
    if labels == "none" or known_classes == []:
        return [], [None] * len(names)
    if labels in ("auto", "folders"):
        return folder_labels(names, str(files.path), known_classes, required=labels == "folders")
    classes = _column(files, names, labels, "label")
    return number_classes(classes, known_classes, f"{files.path}, {labels}")


def find_groups(files: FileList, names: Sequence[str], labels: str, column: str) -> list[str]:
    """Returns the group of each image, from a column of a `.csv` table.

    Args:
        files: the images.
        names: their names.
        labels: as in `find_labels`. Without a table there, `metadata.csv` has the groups.
        column: the column of the table.

    Raises:
        MissingPathError: if the table does not exist.
        UserError: if the table cannot be read or lacks the column or an image.
    """
    table = GROUP_TABLE if labels in ("auto", "folders", "none") else labels
    return _column(files, names, table, column)


def _column(files: FileList, names: Sequence[str], path: str, column: str) -> list[str]:
    """Returns the value of each image in a column of a table."""
    table = _read_table(_table_content(files, path, column), path, column)
    if missing := [name for name in names if name not in table]:
        raise UserError(
            f"{files.path}: {path} has no {column} for {len(missing)} of {len(names)} images, such "
            f"as {missing[0]}. Names must be relative to {files.path}, but the table has "
            f"{next(iter(table), 'nothing')}."
        )
    return [table[name] for name in names]


def number_classes(
    classes: Sequence[str], known_classes: Sequence[str] | None, source: str
) -> Labels:
    """Numbers the class of each image, in natural order unless the classes are known.

    Args:
        classes: the class name of each image.
        known_classes: the class names of the training data; None to use all of `classes`.
        source: where the classes come from, for the message.

    Raises:
        UserError: if a class is unknown.
    """
    class_names = sorted(set(classes), key=natural_key)
    if known_classes is not None:
        if unknown := [name for name in class_names if name not in known_classes]:
            raise UserError(
                f"{source}: {join_names(unknown)} is not a class of the training data, which has "
                f"{join_names(list(known_classes))}. Remove these validation images, or set "
                "labels=none for images in files."
            )
        class_names = list(known_classes)
    number = {name: i for i, name in enumerate(class_names)}
    return class_names, [number[name] for name in classes]


def _table_content(files: FileList, path: str, column: str) -> bytes:
    try:
        with suppress(OSError, KeyError), files.open_name(path) as file:
            return file.read()
        with suppress(OSError), Path(path).expanduser().open("rb") as file:
            return file.read()
    except Exception as error:  # a damaged archive makes zipfile raise nearly anything
        raise UserError(f"{files.path}: {path} cannot be read ({error}).") from error
    setting = f"labels={path}" if column == "label" else f"{path}, which group={column} needs,"
    raise MissingPathError(
        f"{setting} does not exist in {files.path} or {Path.cwd()}. Give auto, folders, none, or a "
        ".csv or .json file as labels."
    )


def _read_table(content: bytes, path: str, column: str) -> dict[str, str]:
    """Returns the value of each file name in a column; a `.json` has only labels."""
    try:
        text = content.decode("utf-8-sig")  # Excel writes a mark first
        if path.lower().endswith(".json"):
            if column != "label":
                raise ValueError("a .json has no columns")
            table = json.loads(text)
            table = table.get("labels", table) if isinstance(table, dict) else table
            pairs = list(table.items()) if isinstance(table, dict) else table
        else:
            rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
            columns = rows.fieldnames or ()
            if text and not {"file_name", column} <= set(columns):
                raise ValueError(f"its columns are {', '.join(columns)}")
            pairs = [(row["file_name"], row[column]) for row in rows]
        values: dict[str, str] = {}
        for name, value in pairs:
            if value not in (None, ""):
                file_name = PurePosixPath(name.replace("\\", "/")).as_posix()
                if values.setdefault(file_name, str(value)) != str(value):
                    raise ValueError(f"{name} is {values[file_name]} and {value}")
        return values
    except Exception as error:  # unexpected content makes all of the above raise anything
        contents = "labels" if column == "label" else column
        raise UserError(
            f"{path} is not a table of {contents} ({type(error).__name__}: {error}). A .csv has "
            f"the columns file_name and {column}; a .json of labels is "
            '{"a/1.png": "cat", ...} or {"labels": [["a/1.png", 0], ...]}.'
        ) from error


def folder_labels(
    names: Sequence[str],
    source: str,
    known_classes: Sequence[str] | None = None,
    *,
    required: bool = False,
) -> Labels:
    """Takes classes from folder names.

    The folders at the first level where the paths differ are the classes, so that
    `photos/cat/1.jpg`, `photos/dog/2.jpg` and the same without `photos/` give `cat` and `dog`.
    Folders inside a class folder belong to it.

    Args:
        names: paths relative to the root of the data, with forward slashes.
        source: the root of the data, for messages.
        known_classes: the class names of the training data; None to find them.
        required: every image must be in a class folder, and one class is enough. Known classes
            imply this. Otherwise there are no classes unless there are two, and every image is in
            one.

    Returns:
        Class names in natural order, empty without classes; the class number of each image, or
        None.

    Raises:
        UserError: if an image is in no class folder but must be in one, if the classes look like
            `train` and `val`, or if a class is unknown.
    """
    folders = [tuple(name.split("/")[:-1]) for name in names]
    required = required or known_classes is not None
    level = _class_level(folders, one_is_enough=required)
    if known_classes is not None:  # the first level where all are known
        levels = range(min(map(len, folders)))
        level = next(
            (i for i in levels if {parts[i] for parts in folders} <= set(known_classes)), level
        )
    stray = [name for name, parts in zip(names, folders, strict=True) if len(parts) <= level]
    if stray:
        problem = f"{len(stray)} of {len(names)} images are in no class folder, such as {stray[0]}"
        if required:
            raise UserError(f"{source}: {problem}. Move them, or set labels=none.")
        if len(stray) < len(names):
            log.info("note: %s: no classes, because %s", source, problem)
        return [], [None] * len(names)
    class_names, labels = number_classes([parts[level] for parts in folders], known_classes, source)
    if {name.lower() for name in class_names} <= SPLIT_NAMES:
        raise UserError(
            f"{source}: the folders {', '.join(class_names)} look like a split, not like classes. "
            "Give one of them as data.path and another as data.val_path, or set labels=none."
        )
    return class_names, labels


def _class_level(folders: Sequence[tuple[str, ...]], one_is_enough: bool) -> int:
    """Counts the leading folders that all paths share, except a last one that is the only class."""
    first, last = min(folders), max(folders)
    level = 0
    while level < min(len(first), len(last)) and first[level] == last[level]:
        level += 1
    everything_in_one = level > 0 and any(len(parts) == level for parts in folders)
    return level - 1 if one_is_enough and everything_in_one else level
