"""Images of Hugging Face datasets: of the hub, Parquet and Arrow files, or saved to disk."""

import hashlib
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from PIL import Image

from taming.data.dataset import Part
from taming.data.files import natural_key
from taming.data.readers import BrokenImageError, Reader, decoding
from taming.data.sources import Fraction, hold_out
from taming.errors import UserError, join_names

if TYPE_CHECKING:  # slow to import, and an extra
    from datasets import Dataset

__all__ = ["HuggingFaceImages", "ImageTable"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HuggingFaceImages:
    """Images of a dataset that Hugging Face's `datasets` can load.

    Args:
        path: `hf:owner/name` of the hub; a folder of Parquet or image files, or one that
            `save_to_disk` wrote; a `.parquet` or `.arrow` file, or a pattern of some.
        reader: reads the images as pictures (`PictureReader`) or label maps (`LabelMapReader`).
        name: which configuration of the dataset; None for its default.
        split: which part to train on, such as `train` or `train[:90%]`.
        val_split: which part to validate on; None to hold some of `split` out.
        val_fraction: share to hold out, see `held_out_split`.
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
    val_split: str | None = None
    val_fraction: Fraction = 0.05
    image_column: str | None = None
    label_column: str | None = None
    max_broken_fraction: Annotated[float, Ge(0), Le(1)] = 0.2

    def open(self) -> tuple[Part, Part]:
        """Opens the dataset; one of the hub is downloaded first, unless it has been.

        Raises:
            UserError: if it cannot be opened, or has other columns or classes.
        """
        train = self._open(self.split)
        if self.val_split is None:
            return hold_out(Part(train), self.val_fraction)
        return Part(train), Part(self._open(self.val_split, train.class_names))

    def _open(self, split: str, known_classes: Sequence[str] | None = None) -> "ImageTable":
        try:
            rows = _load(self.path, self.name, split)
        except ImportError as error:
            raise UserError(
                f"data=huggingface needs {error.name}: pip install 'taming[datasets]'."
            ) from error
        except Exception as error:  # damaged files make pyarrow raise nearly anything
            why = " ".join(str(error.__cause__ or error).split())
            raise UserError(f"{self.path}, split {split}, cannot be loaded: {why}") from error
        return ImageTable(
            rows,
            f"{self.path} {split}",
            self.reader,
            image_column=self.image_column,
            label_column=self.label_column,
            known_classes=known_classes,
            max_broken_fraction=self.max_broken_fraction,
        )


def _load(path: str, name: str | None, split: str) -> "Dataset":
    import datasets

    if path.startswith("hf:"):
        return datasets.load_dataset(path.removeprefix("hf:"), name, split=split)
    place = Path(path).expanduser()
    if any((place / f"dataset_{kind}.json").is_file() for kind in ("info", "dict")):
        saved = datasets.load_from_disk(place)
        return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
    if place.is_dir():
        return datasets.load_dataset(str(place), name, split=split)
    return datasets.load_dataset(place.suffix[1:], name, data_files=str(place), split=split)


class ImageTable:
    """The rows of a `datasets.Dataset` as an `ImageList`; they stay on the disk.

    Args:
        rows: the dataset.
        description: name for messages.
        known_classes: for validation data: the training data's class names.
        reader, image_column, label_column, max_broken_fraction: see `HuggingFaceImages`.

    Raises:
        UserError: if a column is missing, or a class is not a known one.
    """

    in_memory = False
    sizes = None

    def __init__(
        self,
        rows: "Dataset",
        description: str,
        reader: Reader,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        known_classes: Sequence[str] | None = None,
        max_broken_fraction: float = 1.0,
    ) -> None:
        from datasets import Image as ImageFeature

        self.description, self.reader = description, reader
        self.max_broken_fraction = max_broken_fraction
        self._column = _column(rows, "image", image_column, description)
        label_column = _column(rows, "label", label_column, description)
        self.class_names, self._labels = _labels(rows, label_column, description, known_classes)
        self._rows = rows.select_columns([self._column])
        self._rows = self._rows.cast_column(self._column, ImageFeature(decode=False))

    def __len__(self) -> int:
        return len(self._rows)

    @decoding()
    def load(self, index: int) -> Image.Image:
        """Decodes an image; raises `BrokenImageError`."""
        image = self._rows[index][self._column]
        if image is None:
            raise BrokenImageError("no image")
        file = image["path"] if image["bytes"] is None else io.BytesIO(image["bytes"])
        return self.reader.read(file, f"{self.description}: {self.name(index)}")

    def label(self, index: int) -> int | None:
        """Returns the class of an image; None without classes."""
        return int(self._labels[index]) if self.class_names else None

    def name(self, index: int) -> str:
        """Returns the number of the row."""
        return f"{index:08d}"

    def fingerprint(self) -> str:
        """Returns a digest of the rows, as the library tells them apart, labels and reader."""
        parts = self._rows._fingerprint, self.reader, self.class_names
        return hashlib.sha256(repr(parts).encode() + self._labels.tobytes()).hexdigest()


def _column(rows: "Dataset", role: str, name: str | None, source: str) -> str | None:
    """Chooses the column of images or classes."""
    import datasets

    if name is not None and name in rows.column_names:
        return name
    columns = join_names(rows.column_names)
    if name is not None:
        raise UserError(
            f"{source} has no column {name}; it has {columns}: set data.source.{role}_column."
        )
    kind = datasets.Image if role == "image" else datasets.ClassLabel
    found = [column for column, feature in rows.features.items() if isinstance(feature, kind)]
    if len(found) == 1:
        return found[0]
    if role == "image":
        raise UserError(
            f"{source} has {len(found) or 'no'} columns of the type Image; it has {columns}: set "
            "data.source.image_column."
        )
    return None


def _labels(
    rows: "Dataset", column: str | None, source: str, known: Sequence[str] | None
) -> tuple[list[str], np.ndarray]:
    """Returns the names of the classes and the class number of each row; both may be empty."""
    none: tuple[list[str], np.ndarray] = [], np.empty(0, np.int64)
    if column is None or known == []:
        return none
    values: list[Any] = list(rows[column])
    names: list[str] | None = getattr(rows.features[column], "names", None)
    if names is not None:
        values = [None if v is None or v < 0 else names[v] for v in values]
    if None in values:
        log.info("note: %s: no classes, for some rows have none in %s", source, column)
        return none
    names = list(known or names or sorted({str(v) for v in values}, key=natural_key))
    number = {name: i for i, name in enumerate(names)}
    if unknown := sorted({str(v) for v in values} - number.keys(), key=natural_key):
        raise UserError(
            f"{source}: {join_names(unknown)} in {column} is not a class of the training data, "
            f"which has {join_names(names)}."
        )
    return names, np.array([number[str(v)] for v in values], np.int64)
