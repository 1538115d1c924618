"""The class of each image that is sampled: named, of a given image's folder, or all in turn."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import torch

from taming.errors import UserError
from taming.workflows.class_names import listed

__all__ = ["NO_CLASS", "chosen_labels", "folder_classes"]

NO_CLASS = "none"  # asks for no class, unless one has this name


def chosen_labels(
    chosen: Sequence[int | str], num_classes: int, class_names: Sequence[str], num_images: int
) -> torch.Tensor:
    """Classes that images take in turn, as labels `(num_images,)` int64.

    Args:
        chosen: labels, or names, of classes; a number is always a label.
        num_classes: of the model.
        class_names: of the model, empty if it has none.
        num_images: how many.

    Raises:
        UserError: if there is nothing to choose from, or a class is none of the model's.
    """
    if not chosen:
        raise UserError("`classes` is empty: name a class, or leave it out for all in turn.")
    names = list(class_names)
    labels = [names.index(c) if isinstance(c, str) and c in names else c for c in chosen]
    for label in labels:
        if not isinstance(label, int) or not 0 <= label < num_classes:
            known = f" ({listed(names)})" if names else ""
            raise UserError(
                f"class {label!r} does not exist in this model: it has the labels 0 to "
                f"{num_classes - 1}{known}."
            )
    return torch.tensor([int(labels[i % len(labels)]) for i in range(num_images)])


def folder_classes(
    files: Sequence[str], path: str | Path, class_names: Sequence[str]
) -> list[str] | None:
    """Of each given image the class whose name its folder has; None if that is so of none.

    Of several folders the outermost counts, as in training: folders in a class's folder belong to
    it. The last that counts is the one that was given, `path` or the folder of a single image.

    Args:
        files: paths of the images below `path`, with forward slashes.
        path: what was given.
        class_names: of the model.

    Raises:
        UserError: if it is so of some images and not of others.
    """
    given = Path(path).expanduser().absolute()  # a link counts by its own name
    if given.is_file() and given.suffix.lower() != ".zip":
        given = given.parent
    found = []
    for file in files:
        folders = [*PurePosixPath(file).parts[:-1], given.name]
        found.append(next((name for name in folders if name in class_names), None))
    without = [file for file, name in zip(files, found, strict=True) if name is None]
    if len(without) == len(files):
        return None
    if without:
        raise UserError(
            f"{path}: {len(without)} of {len(files)} images lie in no folder that is named like a "
            f"class of the model, such as {without[0]}. Move them, or say with `classes` what the "
            "images show."
        )
    return [name for name in found if name is not None]
