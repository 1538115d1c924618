"""Training and validation parts of what is on disk."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from taming.data.dataset import Source
from taming.data.image_folder import Check
from taming.data.module import Part, hold_out
from taming.data.split import check_fraction
from taming.errors import UserError

__all__ = ["FileSource", "open_parts"]


class FileSource(Source, Protocol):
    """A source whose files can be checked before they are used."""

    def drop_broken(self, check: Check) -> None:
        """Reads the files and leaves the broken ones out."""


AnySource = TypeVar("AnySource", bound=FileSource)


def open_parts(
    read: Callable[[str | Path, str, AnySource | None], AnySource],
    path: str | Path,
    val_path: str | Path | None,
    val_fraction: float,
    check: Check,
) -> tuple[Part, Part]:
    """Reads the training data and the validation data, or holds some of the former out.

    Args:
        read: from a path, its setting's name, and, for validation data, the training data, to the
            source there.
        path: of the training data.
        val_path: of the validation data; None to hold `val_fraction` of the training data out.
        val_fraction: share to hold out.
        check: how files are checked, see `ImageFolder.drop_broken`.

    Raises:
        UserError: if there is nothing to read, too much of it is broken, or validation data is
            among the training data.
    """
    train = read(path, "data.path", None)
    if val_path is None:
        check_fraction(val_fraction)  # before the images are read, which takes time
        train.drop_broken(check)
        return hold_out(train, val_fraction)
    val = read(val_path, "data.val_path", train)
    if shared := _folders(train, path) & _folders(val, val_path):
        raise UserError(
            f"images of data.val_path={val_path} are also in data.path={path}, such as those in "
            f"{min(shared)}: validation must not see training images. Move them out of there, or "
            "leave data.val_path out, so that data.val_fraction of the images is held out."
        )
    val.drop_broken(check)
    train.drop_broken(check)
    return Part(train), Part(val)


def _folders(source: Source, path: str | Path) -> set[str]:
    """Where the images of a source lie, links followed; a folder's images are all in it."""
    names = {source.name(i).rpartition("/")[0] for i in range(len(source))}
    return {os.path.realpath(Path(path).expanduser() / name) for name in names}
