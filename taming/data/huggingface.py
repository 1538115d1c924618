"""Images of Hugging Face datasets: of the hub, Parquet and Arrow files, or saved to disk."""

import hashlib
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from taming.data.dataset import ImageList, Part
from taming.data.labels import Labels, number_classes
from taming.data.planes import AnyImage
from taming.data.readers import BrokenImageError, Reader, decoding
from taming.data.sources import Fraction, hold_out
from taming.runtime.errors import UserError, join_names

__all__ = ["HuggingFaceImages", "Rows", "TableSource"]

log = logging.getLogger(__name__)


class Rows(NamedTuple):
    """A dataset's images, as files that are not decoded, and their classes."""

    table: Any  # `datasets.Dataset` or `IterableDataset`
    description: str  # for messages
    image: str  # name of the column
    label: str | None
    class_names: list[str] | None  # None if the type of the column does not say

    def class_of(self, row: dict[str, Any]) -> str | None:
        """Returns the name of a row's class; None without one."""
        value = None if self.label is None else row[self.label]
        if value is None or self.class_names is None:
            return None if value is None else str(value)
        if value >= len(self.class_names):
            raise UserError(
                f"{self.description}: {self.label} is {value} somewhere, and its classes are those "
                f"from 0 to {len(self.class_names) - 1}: correct the dataset, or name another "
                "data.source.label_column."
            )
        return self.class_names[value] if value >= 0 else None


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """A dataset that Hugging Face's `datasets` can load.

    Args:
        path: `hf:owner/name` of the hub; a folder of Parquet or image files, or one that
            `save_to_disk` wrote; a `.parquet` or `.arrow` file, or a pattern of some.
        reader: reads the images as pictures (`PictureReader`) or label maps (`LabelMapReader`).
        name: which configuration of the dataset; None for its default.
        split: which part to train on, such as `train` or `train[:90%]`.
        image_column: None for the only column of images.
        label_column: column of classes, numbers or names; None for the only one of the type
            `ClassLabel`, if there is one.
        max_broken_fraction: images that cannot be decoded are replaced by others; a larger share of
            them is an error.
    """

    path: str
    reader: Reader
    name: str | None = None
    split: str = "train"
    image_column: str | None = None
    label_column: str | None = None
    max_broken_fraction: Annotated[float, Ge(0), Le(1)] = 0.2

    @property
    def file_type(self) -> str:
        """What the path ends in, without dot, and without the query of a web address."""
        path = self.path.partition("?")[0] if "://" in self.path else self.path
        return PurePosixPath(path).suffix[1:]

    def open_rows(self, split: str, *, streaming: bool = False) -> Rows:
        """Opens a part of the dataset; one of the hub is downloaded first, unless it streams.

        Raises:
            UserError: if it cannot be opened, or a column is missing.
        """
        description = f"{self.path} {split}"
        try:
            import datasets

            table = self._load(split, streaming)
            features = table.features or table._resolve_features().features
        except ImportError as error:
            raise UserError(
                f"data.path={self.path} needs {error.name}: pip install 'taming[datasets]'."
            ) from error
        except Exception as error:  # damaged files make pyarrow raise nearly anything
            why = " ".join(str(error.__cause__ or error).split())
            raise UserError(f"{self.path}, split {split}, cannot be loaded: {why}") from error
        for role, column in (("image", self.image_column), ("label", self.label_column)):
            if column is not None and column not in features:
                raise UserError(
                    f"{description} has no column {column}; it has {join_names(list(features))}: "
                    f"set data.source.{role}_column."
                )
        images, labels = (
            [name for name, feature in features.items() if isinstance(feature, kind)]
            for kind in (datasets.Image, datasets.ClassLabel)
        )
        if self.image_column is None and len(images) != 1:
            raise UserError(
                f"{description} has {len(images) or 'no'} columns of the type Image; it has "
                f"{join_names(list(features))}: set data.source.image_column."
            )
        image = self.image_column or images[0]
        label = self.label_column or (labels[0] if len(labels) == 1 else None)
        table = table.select_columns([image, *filter(None, [label])])
        try:
            table = table.cast_column(image, datasets.Image(decode=False))
        except Exception as error:  # pyarrow's own
            raise UserError(
                f"{description}: {image} is no column of images: set data.source.image_column to "
                f"another of {join_names(list(features))}."
            ) from error
        names = None if label is None else getattr(features[label], "names", None)
        return Rows(table, description, image, label, names)

    def _load(self, split: str, streaming: bool) -> Any:
        import datasets

        place = Path(self.path).expanduser()
        if any((place / f"dataset_{kind}.json").is_file() for kind in ("info", "dict")):
            saved = datasets.load_from_disk(place)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        path, files = str(place), None
        if self.path.startswith("hf:"):
            path = self.path.removeprefix("hf:")
        elif not place.is_dir():
            path, files = self.file_type, expanduser(self.path)  # noqa: PTH111 (keeps "//")
        return datasets.load_dataset(
            path, self.name, data_files=files, split=split, streaming=streaming
        )


@dataclass(frozen=True, kw_only=True)
class HuggingFaceImages(TableSource):
    """Images of a dataset that lies on the disk, or is downloaded; see `TableSource`.

    Args:
        val_split: which part to validate on; None to hold some of `split` out.
        val_fraction: share to hold out, see `held_out_split`.
    """

    val_split: str | None = None
    val_fraction: Fraction = 0.05

    def open(self) -> tuple[Part, Part]:
        """Opens the dataset.

        Raises:
            UserError: if it cannot be opened, or has other columns or classes.
        """
        train = ImageTable(self.open_rows(self.split), self)
        if self.val_split is None:
            return hold_out(Part(train), self.val_fraction)
        val = ImageTable(self.open_rows(self.val_split), self, train.class_names)
        return Part(train), Part(val)


class ImageTable(ImageList):
    """The rows of a `datasets.Dataset` as an `ImageList`; they stay on the disk.

    Args:
        rows: the dataset.
        source: its settings.
        known_classes: for validation data: the training data's class names.

    Raises:
        UserError: if a class is not one of the training data.
    """

    def __init__(
        self, rows: Rows, source: TableSource, known_classes: Sequence[str] | None = None
    ) -> None:
        self.description, self.reader = rows.description, source.reader
        self.max_broken_fraction = source.max_broken_fraction
        self._table, self._image = rows.table, rows.image
        self.class_names, labels = _labels(rows, known_classes)
        self.labels = np.array(labels, np.int64)

    def __len__(self) -> int:
        return len(self._table)

    @decoding()
    def load(self, index: int, least_side: int | None = None) -> AnyImage:
        """Decodes an image; raises `BrokenImageError`."""
        image = self._table[index][self._image]
        if image is None:
            raise BrokenImageError("no image")
        file = image["path"] if image["bytes"] is None else io.BytesIO(image["bytes"])
        return self.reader.read(file, f"{self.description}: {self.name(index)}", least_side)

    def name(self, index: int) -> str:
        """Returns the number of the row."""
        return f"{index:08d}"

    def fingerprint(self) -> str:
        """Returns a digest of the rows, as the library tells them apart, labels and reader."""
        parts = self._table._fingerprint, self.reader, self.class_names
        return hashlib.sha256(repr(parts).encode() + self.labels.tobytes()).hexdigest()


def _labels(rows: Rows, known: Sequence[str] | None) -> Labels:
    """Returns the names of the classes and the class number of each row; empty without classes."""
    if rows.label is None or known == []:
        return [], []
    found: list[Any] = [rows.class_of(row) for row in rows.table.select_columns([rows.label])]
    if None in found:
        log.info("note: %s: no classes, for rows have none in %s", rows.description, rows.label)
        return [], []
    return number_classes(found, known or rows.class_names, f"{rows.description}, {rows.label}")
