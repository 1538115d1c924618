"""Training and validation parts of what is on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from taming.data.dataset import Source
from taming.data.image_folder import Check
from taming.data.module import Part, hold_out
from taming.data.split import check_fraction

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
        UserError: if there is nothing to read, or too much of it is broken.
    """
    train = read(path, "data.path", None)
    if val_path is None:
        check_fraction(val_fraction)  # before the images are read, which takes time
        train.drop_broken(check)
        return hold_out(train, val_fraction)
    val = read(val_path, "data.val_path", train)
    val.drop_broken(check)
    train.drop_broken(check)
    return Part(train), Part(val)
