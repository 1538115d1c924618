"""Everything that Hugging Face's `datasets` reads: WebDataset shards, Parquet, datasets of the hub.

Why this library and not LitData or WebDataset: see docs/data.md.
"""

import hashlib
import io
import logging
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from os.path import expanduser
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from taming.data.dataset import ImageList, Part
from taming.data.files import natural_key
from taming.data.labels import Labels, folder_labels, number_classes
from taming.data.readers import AnyImage, BrokenImageError, Reader, decoding
from taming.data.sources import Fraction, check_groups, hold_out
from taming.runtime.errors import MissingPathError, UserError, join_names

__all__ = ["HuggingFaceImages", "Table", "TableSource"]

log = logging.getLogger(__name__)

FILE_TYPES = ("arrow", "parquet", "tar")  # the library would also unpickle a .pandas file

Batch = dict[str, list[Any]]  # some rows of a table, by column


class Table(NamedTuple):
    """A dataset with undecoded images, and the columns to read.

    A WebDataset sample has one column for each type of file, so its image is in the only column
    that is not None.
    """

    rows: Any  # `datasets.Dataset` or `datasets.IterableDataset`
    description: str
    image_columns: list[str]
    label_columns: list[str]
    class_names: list[str] | None  # None unless the type of the label column lists them

    def images(self, batch: Batch) -> list[dict[str, Any] | None]:
        """Returns the image of each row, as the library holds it: `bytes` or `path`."""
        columns = zip(*(batch[name] for name in self.image_columns), strict=True)
        return [next(filter(None, values), None) for values in columns]

    def classes(self, batch: Batch) -> list[str | None]:
        """Returns the class of each row; None for a row without one."""
        columns = zip(*(batch[name] for name in self.label_columns), strict=True)
        return [self._class_name(values) for values in columns]

    def _class_name(self, values: tuple[Any, ...]) -> str | None:
        value = next((value for value in values if value is not None), None)
        if isinstance(value, dict):  # a .json file
            value = value.get("label")
        if value is None or self.class_names is None:
            return None if value is None else str(value)
        if value >= len(self.class_names):
            raise UserError(
                f"{self.description}: a row has the class {value}, but {self.label_columns[0]} "
                f"lists only {len(self.class_names)}. Set data.source.label_column."
            )
        return self.class_names[value] if value >= 0 else None


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """A dataset that Hugging Face's `datasets` can load.

    Args:
        path: `hf:owner/name` on the hub; a folder of `.tar`, Parquet or image files, or one that
            `save_to_disk` wrote; a `.tar`, `.parquet` or `.arrow` file, or a pattern for several,
            on this machine or behind any address that fsspec opens.
        reader: decodes the images as pictures (`PictureReader`) or label maps (`LabelMapReader`).
        name: the configuration of the dataset; None for its default.
        split: the part to train on, such as `train` or `train[:90%]`.
        image_column: None for the only column of images.
        label_column: the column with class numbers or names. None for the only column of the type
            `ClassLabel`, or for the `.cls` or `.json` files of WebDataset shards.
        max_broken_fraction: images that cannot be decoded are replaced by others. A larger share
            is an error.
    """

    path: str
    reader: Reader
    name: str | None = None
    split: str = "train"
    image_column: str | None = None
    label_column: str | None = None
    max_broken_fraction: Annotated[float, Ge(0), Le(1)] = 0.2

    def open_table(self, split: str, *, group: str | None = None, streaming: bool = False) -> Table:
        """Opens a part of the dataset, and downloads or converts it first unless it streams.

        The table also has the column `group`, if there is one.

        Raises:
            UserError: if it cannot be opened, or a column is missing.
        """
        try:
            import datasets

            groups = [] if group is None else [group]
            rows = self._load(split, groups, streaming)
            features = rows.features or {}
            images, labels = self._image_columns, self._label_columns
            if not self.shards:
                images = images or [n for n, f in features.items() if isinstance(f, datasets.Image)]
                types = [n for n, f in features.items() if isinstance(f, datasets.ClassLabel)]
                labels = labels or (types if len(types) == 1 else [])
                if len(images) != 1:
                    raise UserError(
                        f"{self.path} {split} has {len(images) or 'no'} columns of the type Image; "
                        f"it has {join_names(list(features))}. Set data.source.image_column."
                    )
            rows = rows.select_columns(list(dict.fromkeys(images + labels + groups)))
            for name in images:
                rows = rows.cast_column(name, datasets.Image(decode=False))
        except ImportError as error:
            raise UserError(
                f"data.path={self.path} needs {error.name}: pip install 'taming[datasets]'."
            ) from error
        except UserError:
            raise
        except Exception as error:  # damaged files make pyarrow raise nearly anything
            why = " ".join(str(error.__cause__ or error).split())
            raise UserError(f"{self.path}, split {split}, cannot be loaded: {why}") from error
        names = getattr(features.get(labels[0]), "names", None) if labels else None
        return Table(rows, f"{self.path} {split}", images, labels, names)

    @property
    def shards(self) -> list[str]:
        """The WebDataset shards that `path` names; empty for another kind of dataset."""
        path = expanduser(self.path)  # noqa: PTH111 (keeps "//")
        if Path(path).is_dir():
            return sorted(glob(f"{path}/**/*.tar", recursive=True))  # noqa: PTH207 (not hidden ones)
        if self._file_type != "tar":
            return []
        if "{" not in path:
            return sorted(glob(path)) or [path]  # noqa: PTH207 (any folder)
        from braceexpand import braceexpand  # fsspec expands * but not {000..009}

        return list(braceexpand(path))

    def check_shards(self) -> None:
        """Raises a `UserError` if a shard on this machine is damaged."""
        for shard in self.shards:
            if "://" not in shard:
                check_shard(Path(shard))

    @property
    def _file_type(self) -> str:
        path = self.path.partition("?")[0] if "://" in self.path else self.path
        return PurePosixPath(path).suffix[1:]

    @property
    def _image_columns(self) -> list[str]:
        if self.image_column is not None:
            return [self.image_column]
        suffixes = sorted(suffix[1:] for suffix in self.reader.suffixes) if self.shards else []
        return suffixes + [suffix.upper() for suffix in suffixes]

    @property
    def _label_columns(self) -> list[str]:
        if self.label_column is not None:
            return [self.label_column]
        return ["cls", "json"] if self.shards else []

    def _load(self, split: str, groups: list[str], streaming: bool) -> Any:
        import datasets

        path, options = expanduser(self.path), {}  # noqa: PTH111 (keeps "//")
        if any((Path(path) / f"dataset_{kind}.json").is_file() for kind in ("info", "dict")):
            saved = datasets.load_from_disk(path)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        shards = self.shards
        if missing := [one for one in shards if "://" not in one and not Path(one).is_file()]:
            raise MissingPathError(
                f"{self.path}: {len(missing)} of {len(shards)} shards are missing "
                f"({join_names(missing)}). Download them, or leave them out of data.path."
            )
        if shards:
            # the library would take them from the first samples, and others may have other files
            features = dict.fromkeys(self._image_columns, datasets.Image())
            texts = self._label_columns + groups
            features |= dict.fromkeys(texts, datasets.Value("string"))
            if "json" in features:
                features["json"] = {"label": datasets.Value("string")}
            options["features"] = datasets.Features(features)
        if self.path.startswith("hf:"):
            path = self.path.removeprefix("hf:")
        elif not Path(path).is_dir():
            if self._file_type not in FILE_TYPES:
                raise UserError(
                    f"data.path={self.path} is neither a folder nor a .tar, .parquet or .arrow "
                    "file. Write a dataset of the hub as hf:owner/name."
                )
            options["data_files"] = shards or path
            path = "webdataset" if shards else self._file_type
        builder = datasets.load_dataset_builder(path, self.name, **options)
        if streaming:
            return builder.as_streaming_dataset(split)
        if not Path(builder.cache_dir).exists():  # not converted yet
            self.check_shards()
        builder.download_and_prepare()
        return builder.as_dataset(split)


def check_shard(path: Path) -> None:
    """Raises a `UserError` for a damaged archive: the library reads it up to the damage."""
    try:
        with tarfile.open(path, "r:") as archive, path.open("rb") as file:
            while (member := archive.next()) is not None:
                if member.size < 0:
                    raise tarfile.ReadError(f"{member.name} has a negative size")
                archive.members.clear()  # type: ignore[attr-defined]  # it keeps them all
            file.seek(archive.offset)
            end = file.read(2 * tarfile.RECORDSIZE)
        if not end or any(end):
            raise tarfile.ReadError(f"damaged, or a second archive, at byte {archive.offset:,}")
    except Exception as error:  # a damaged archive makes tarfile raise nearly anything
        raise UserError(
            f"the shard {path} cannot be read ({error}). Download or create it again. Shards must "
            "not be compressed."
        ) from error


@dataclass(frozen=True, kw_only=True)
class HuggingFaceImages(TableSource):
    """Images of a dataset that is on disk or can be downloaded; see `TableSource`.

    Args:
        val_split: the part to validate on; None to hold out a share of `split`.
        val_fraction: the share to hold out, see `held_out_split`.
        test_fraction: the share of the part with the validation images to set aside for testing,
            before anything else is held out; None for no test images.
        group: the column that names the groups of the images, which are not split; None for none.
    """

    val_split: str | None = None
    val_fraction: Fraction = 0.05
    test_fraction: Fraction | None = None
    group: str | None = None

    def open(self) -> tuple[Part, ...]:
        """Opens the dataset.

        Raises:
            UserError: if it cannot be opened, or has other columns or classes, or a group is split.
        """
        train = self._images(self.split)
        if self.val_split is None:
            return hold_out(Part(train), self.val_fraction, self.test_fraction)
        val = self._images(self.val_split, train.class_names)
        check_groups(train, val)
        return Part(train), *hold_out(Part(val), self.test_fraction)

    def _images(self, split: str, known_classes: Sequence[str] | None = None) -> "ImageTable":
        return ImageTable(self.open_table(split, group=self.group), self, known_classes)


class ImageTable(ImageList):
    """The rows of a `datasets.Dataset` as an `ImageList`; they stay on the disk.

    Samples of WebDataset shards have the names and the order of files in a folder, so shards train
    like the folder they were made of.

    Args:
        known_classes: for validation data, the class names of the training data.

    Raises:
        UserError: if a class does not exist in the training data.
    """

    def __init__(
        self, table: Table, source: HuggingFaceImages, known_classes: Sequence[str] | None = None
    ) -> None:
        self.description, self.reader = table.description, source.reader
        self.max_broken_fraction = source.max_broken_fraction
        self._names: list[str] | None = None
        if source.shards:
            table, self._names = _in_natural_order(table)
        self._table = table
        self.class_names, labels = _labels(table, self._names, known_classes)
        self.labels = np.array(labels, np.int64)
        self.groups = [] if source.group is None else _groups(table, source.group)

    def __len__(self) -> int:
        return len(self._table.rows)

    @decoding()
    def load(self, index: int, least_side: int | None = None) -> AnyImage:
        """Decodes an image; raises `BrokenImageError`."""
        (image,) = self._table.images(self._table.rows[index : index + 1])
        if image is None:
            raise BrokenImageError("no image")
        file = image["path"] if image["bytes"] is None else io.BytesIO(image["bytes"])
        return self.reader.read(file, f"{self.description}: {self.name(index)}", least_side)

    def name(self, index: int) -> str:
        """Returns the number of the row, or the name of the file in its shard."""
        return f"{index:08d}" if self._names is None else self._names[index]

    def fingerprint(self) -> str:
        """Returns a digest of the rows, labels and reader."""
        parts = self._table.rows._fingerprint, self.reader, self.class_names
        return hashlib.sha256(repr(parts).encode() + self.labels.tobytes()).hexdigest()


def _in_natural_order(table: Table) -> tuple[Table, list[str]]:
    """Sorts the samples of shards by the names of their images; drops samples without an image."""
    columns = table.rows.select_columns(table.image_columns).flatten()
    columns = columns.select_columns([f"{name}.path" for name in table.image_columns])[:]
    paths: list[Any] = [
        next(filter(None, values), None) for values in zip(*columns.values(), strict=True)
    ]
    order = [index for index, path in enumerate(paths) if path is not None]
    order.sort(key=lambda index: natural_key(paths[index]))
    if not order:
        raise UserError(
            f"{table.description}: no sample has an image that ends in one of "
            f"{', '.join(table.image_columns)}. Set data.source.image_column to the ending."
        )
    names = [paths[index].removeprefix("./") for index in order]
    return table._replace(rows=table.rows.select(order)), names


def _groups(table: Table, column: str) -> list[str]:
    """Returns the group of each row."""
    groups = table.rows.select_columns([column])[:][column]
    if without := sum(group in (None, "") for group in groups):
        raise UserError(
            f"{table.description}: {without} of {len(groups)} rows have no {column}. Fill the "
            "column, or set data.source.group=null."
        )
    return list(map(str, groups))


def _labels(
    table: Table, names: Sequence[str] | None, known_classes: Sequence[str] | None
) -> Labels:
    """Returns the class names, and the class number of each row; both are empty without classes."""
    classes: list[Any] = []
    if table.label_columns and known_classes != []:
        classes = table.classes(table.rows.select_columns(table.label_columns)[:])
    if None in classes and set(classes) != {None}:
        log.info("note: %s: no classes, because some rows have none", table.description)
    if names is not None and known_classes != []:
        folders = [name.rpartition("/")[0] for name in names]
        pairs = set(zip(folders, classes, strict=True))
        one_to_one = len(pairs) == len(set(folders)) == len(set(classes))
        if None in classes or (one_to_one and all(map(str.isdecimal, classes))):
            class_names, labels = folder_labels(names, table.description, known_classes)
            return class_names, labels if class_names else []
    if None in classes or not classes:
        return [], []
    known_classes = known_classes or table.class_names
    columns = ", ".join(table.label_columns)
    return number_classes(classes, known_classes, f"{table.description}, {columns}")
