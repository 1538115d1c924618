"""Images that are read in order and never stored: datasets that are too large for the disk."""

import hashlib
import io
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge
from tqdm import tqdm

from taming.data.dataset import ImageList, Part
from taming.data.files import natural_key
from taming.data.huggingface import Batch, Table, TableSource
from taming.data.readers import AnyImage, BrokenImageError
from taming.runtime.errors import UserError, join_names

__all__ = ["ImageStream", "StreamedImages"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ImageStream(TableSource):
    """Images that are read in order and never stored; see `TableSource`.

    The first images are for validation. Each process that loads images reads the whole stream and
    decodes only its own.

    Args:
        num_images: the number of images; None to count them, which reads the stream once.
        num_classes: the classes of shards are 0 to `num_classes` - 1; None for no classes if
            `num_images` is set, otherwise for those that are found while counting.
        num_val_images: images for validation, which are kept in memory.
        shuffle_buffer: images are shuffled within groups of this many neighbours. Each process
            keeps two groups in memory, undecoded.
    """

    num_images: Annotated[int, Ge(2)] | None = None
    num_classes: Annotated[int, Ge(1)] | None = None
    num_val_images: Annotated[int, Ge(1)] = 1000
    shuffle_buffer: Annotated[int, Ge(1)] = 1000

    def open(self) -> tuple[Part, Part]:
        """Finds out how many images and which classes there are.

        Raises:
            UserError: if the stream cannot be read, or has too few images.
        """
        num_images, class_names = self._count()
        num_val = self.num_val_images
        if num_images <= num_val:
            raise UserError(
                f"{self.path} has only {num_images} images, but {num_val} are for validation. "
                "Lower data.source.num_val_images."
            )
        train = StreamedImages(self, num_val, num_images, class_names, self.shuffle_buffer)
        return Part(train), Part(StreamedImages(self, 0, num_val, class_names, num_val))

    def batches(self, table: Table, start: int, size: int) -> Iterator[Batch]:
        """Yields batches of `size` rows from row `start` on.

        A loader process gets all rows from the library's `iter`, and other rows than the other
        processes from a plain loop. The library's `shuffle` is not used, because resuming loses
        the rows in its buffer.

        Raises:
            UserError: if the stream breaks off.
        """
        count = start
        try:
            for batch in table.rows.skip(start).iter(size):
                yield batch
                count += len(batch[next(iter(batch))])
        except Exception as error:  # any error of a file system or a damaged file
            why = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{self.path} cannot be read after image {count:,}: {why}") from error

    def _count(self) -> tuple[int, list[str]]:
        """Returns the number of images and the class names. Reads the stream if necessary."""
        table = self.open_table(self.split, streaming=True)
        self.check_shards()  # here, because each loader process opens the table again
        class_names = table.class_names
        if not table.label_columns:
            class_names = []
        elif self.shards and (self.num_classes is not None or self.num_images is not None):
            class_names = [str(number) for number in range(self.num_classes or 0)]
        split = (table.rows.info.splits or {}).get(self.split)
        num_images = self.num_images or (split and split.num_examples)
        if num_images and class_names is not None:
            return num_images, class_names
        if table.label_columns:  # Parquet files need not read the images then
            table = table._replace(rows=table.rows.select_columns(table.label_columns))
        count: Counter[str | None] = Counter()
        with tqdm(desc=f"counting {self.path}", unit="image", delay=1) as bar:
            for batch in self.batches(table, 0, 1000):
                size = len(batch[next(iter(batch))])
                count.update(table.classes(batch) or [None] * size)
                bar.update(size)
        if class_names is None:
            if None in count and len(count) > 1:
                without = f"{count[None]} of {count.total()} images have none"
                log.info("note: %s: no classes, because %s", self.path, without)
            class_names = [] if None in count else sorted(map(str, count), key=natural_key)
        return count.total(), class_names


class StreamedImages(ImageList):
    """A stretch of a stream as an `ImageList`.

    Images are read in blocks, and the last two blocks stay in memory. For a later block, the stream
    is read up to it. For an earlier block, the stream is read again from its start.

    Args:
        stream: the stream.
        start: number of the first image.
        stop: number of the image after the last one.
        class_names: empty if there are no classes.
        block: the number of images in a block. The order may be changed within each block.
    """

    block: int

    def __init__(
        self, stream: ImageStream, start: int, stop: int, class_names: list[str], block: int
    ) -> None:
        self.stream, self.start, self.stop = stream, start, stop
        self.class_names, self.block = class_names, min(block, stop - start)
        self.description, self.reader = stream.path, stream.reader
        self.max_broken_fraction = stream.max_broken_fraction
        self._number = {name: i for i, name in enumerate(class_names)}
        self._table: Table | None = None
        self.close()

    def __len__(self) -> int:
        return self.stop - self.start

    def load(self, index: int, least_side: int | None = None) -> AnyImage:
        """Decodes an image; raises `BrokenImageError`."""
        image, _ = self._sample(index)
        if image is None:
            raise BrokenImageError("no image")
        content = image["bytes"]
        if content is None:
            import fsspec

            with fsspec.open(image["path"]) as file:
                content = file.read()
        name = f"{self.description}: {self.name(index)}"
        return self.reader.read(io.BytesIO(content), name, least_side)

    def label(self, index: int) -> int | None:
        """Returns the class of an image; None without classes."""
        if not self.class_names:
            return None
        _, label = self._sample(index)
        if label not in self._number:
            raise UserError(
                f"{self.description}: image {self.name(index)} has the class {label}. The classes "
                f"are {join_names(self.class_names)}."
            )
        return self._number[label]

    def name(self, index: int) -> str:
        """Returns the number of the image in the stream."""
        return f"{self.start + index:08d}"

    def fingerprint(self) -> str:
        """Returns a digest of the place, number and classes of the images, and of their reader."""
        source = self.stream
        place = source.path, source.name, source.split, source.image_column, source.label_column
        parts = place, self.start, self.stop, self.class_names, self.reader
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def close(self) -> None:
        """Stops reading and frees the blocks; the next `load` starts again."""
        self._batches: Iterator[Batch] | None = None
        self._next = 0  # number of the block that `_batches` yields next
        self._blocks: dict[int, list[tuple[Any, str | None]]] = {}  # the last two

    def _sample(self, index: int) -> tuple[dict[str, Any] | None, str | None]:
        number, place = divmod(index, self.block)
        if number not in self._blocks and (self._batches is None or number < self._next):
            self.close()
            self._table = self._table or self.stream.open_table(self.stream.split, streaming=True)
            self._batches = self.stream.batches(self._table, self.start, self.block)
        while number not in self._blocks:
            self._read_block()
        return self._blocks[number][place]

    def _read_block(self) -> None:
        assert self._batches is not None and self._table is not None
        batch = next(self._batches, None)
        images = [] if batch is None else self._table.images(batch)
        first = self._next * self.block
        missing = min(self.block, len(self) - first) - len(images)
        if batch is None or missing > 0:
            raise UserError(
                f"{self.description} ended after {self.start + first + len(images)} images, not "
                f"{self.stop}. Correct data.source.num_images."
            )
        classes = self._table.classes(batch) or [None] * len(images)
        self._blocks.pop(self._next - 2, None)
        self._blocks[self._next] = list(zip(images, classes, strict=True))
        self._next += 1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None, "_blocks": {}, "_table": None}
