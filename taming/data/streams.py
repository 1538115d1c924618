"""Images that can only be read in order: from a pipe, a web address, a streamed dataset."""

import hashlib
import io
import logging
import tarfile
from collections import Counter, deque
from collections.abc import Generator, Iterator, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby, islice
from os.path import expanduser
from queue import Empty, Queue
from threading import Event, Thread
from typing import Annotated, Any

from annotated_types import Ge, Gt
from tqdm import tqdm

from taming.data.dataset import ImageList, Part
from taming.data.files import natural_key, suffix_of
from taming.data.huggingface import TableSource
from taming.data.image_folder import MAX_BYTES
from taming.data.planes import AnyImage
from taming.data.readers import BrokenImageError
from taming.data.shards import Archive, files_in, sample_name
from taming.runtime.errors import UserError, join_names

__all__ = ["ImageStream", "StreamedImages"]

log = logging.getLogger(__name__)

Sample = tuple[bytes | None, str | None]  # the file of an image, and its class


@dataclass(frozen=True, kw_only=True)
class ImageStream(TableSource):
    """Images that are read in order, and never stored.

    The first of them are for validation. Each process that loads images reads the whole stream, and
    decodes only what it needs.

    Args:
        path: WebDataset shards as `pipe:COMMAND` or a web address, with `{000..009}` for several,
            whose samples are those of `TarFiles`, each in one piece; or a dataset as `TableSource`
            takes it, other than a saved one.
        num_images: how many there are; None to count, which reads the stream once.
        num_classes: shards have the classes 0 to `num_classes` - 1; None for none, or for those
            that are found while counting.
        num_val_images: images for validation, which are kept in memory.
        shuffle_buffer: images are mixed within groups of so many neighbours; each process keeps
            three groups in memory, not decoded.
        patience: seconds after which a stream that sends nothing is given up.
    """

    num_images: Annotated[int, Ge(2)] | None = None
    num_classes: Annotated[int, Ge(1)] | None = None
    num_val_images: Annotated[int, Ge(1)] = 1000
    shuffle_buffer: Annotated[int, Ge(1)] = 1000
    patience: Annotated[float, Gt(0)] = 300.0

    def open(self) -> tuple[Part, Part]:
        """Finds out how many images and which classes there are.

        Raises:
            UserError: if the stream cannot be read, or has too few images.
        """
        num_images, class_names = self._count()
        num_val = self.num_val_images
        if num_images <= num_val:
            raise UserError(
                f"{self.path} has {num_images} images, and {num_val} of them are for validation: "
                "lower data.source.num_val_images."
            )
        train = StreamedImages(self, num_val, num_images, class_names, self.shuffle_buffer)
        return Part(train), Part(StreamedImages(self, 0, num_val, class_names, num_val))

    def samples(self) -> Generator[Sample]:
        """Yields all samples, in order, read ahead in a thread.

        Raises:
            UserError: if the stream breaks off or stalls.
        """
        ahead: Queue[Any] = Queue(self.shuffle_buffer)
        closed = Event()

        def read() -> None:
            try:
                with closing(self._read()) as samples:
                    for sample in samples:
                        ahead.put(sample)
                        if closed.is_set():
                            return
                ahead.put(None)
            except Exception as error:  # whatever a library or a damaged shard raises
                if not closed.is_set():
                    ahead.put(error)

        Thread(target=read, daemon=True).start()
        count = 0
        try:
            while (sample := ahead.get(timeout=self.patience)) is not None:
                if isinstance(sample, Exception):
                    raise sample
                yield sample
                count += 1
        except Empty as error:
            raise UserError(
                f"{self.path} has stalled: nothing came for {self.patience:g} seconds after image "
                f"{count:,} (data.source.patience)."
            ) from error
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{self.path} cannot be read after image {count:,}: {why}") from error
        finally:
            closed.set()
            with suppress(Empty):  # room for the last sample, which the thread may wait to put
                ahead.get_nowait()

    @property
    def _is_shards(self) -> bool:
        return self.path.startswith("pipe:") or self.file_type == "tar"

    def _read(self) -> Generator[Sample]:
        yield from self._read_shards() if self._is_shards else self._read_rows()

    def _read_shards(self) -> Iterator[Sample]:
        try:
            import webdataset
        except ImportError as error:
            raise UserError("this needs webdataset: pip install 'taming[datasets]'") from error
        path = expanduser(self.path)  # noqa: PTH111 (keeps "//")
        shards = webdataset.SimpleShardList(path)
        in_front = self.path.startswith("pipe:")  # where the commands of a stranger are looked for
        if not in_front and any(url.lower().startswith("pipe:") for url in shards.urls):
            raise UserError("a path with commands must begin with pipe:")
        for url in shards.urls:
            try:
                with (
                    closing(webdataset.gopen(url)) as file,
                    Archive.open(fileobj=file, mode="r|") as archive,
                ):
                    yield from _samples(archive, self.reader.suffixes)
            except Exception as error:  # a damaged archive makes tarfile raise nearly anything
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                why = why.rpartition("}): ")[2].removesuffix(" (read) {}")  # of a command: exit 1
                found = error.__context__  # damage, after which the command could not go on
                if isinstance(error, OSError) and isinstance(found, UserError | tarfile.TarError):
                    why = f"{found}; {why}"
                raise UserError(f"{url}: {why}") from error

    def _read_rows(self) -> Iterator[Sample]:
        import fsspec

        rows = self.open_rows(self.split, streaming=True)
        for batch in rows.table.iter(1):  # unlike the table itself it is not split among processes
            row = {name: values[0] for name, values in batch.items()}
            image = row[rows.image] or {"bytes": None, "path": None}
            if image["bytes"] is None and image["path"] is not None:
                with fsspec.open(image["path"]) as file:
                    image["bytes"] = file.read()
            yield image["bytes"], rows.class_of(row)

    def _count(self) -> tuple[int, list[str]]:
        """Returns the number of images and the names of the classes, reading all if need be."""
        num_images, class_names = self.num_images, None
        if self._is_shards:
            if self.num_classes is not None or num_images is not None:
                class_names = [str(number) for number in range(self.num_classes or 0)]
        else:
            rows = self.open_rows(self.split, streaming=True)
            class_names = rows.class_names or ([] if rows.label is None else None)
            known = (rows.table.info.splits or {}).get(self.split)
            num_images = num_images or (known and known.num_examples)
        if num_images is not None and class_names is not None:
            return num_images, class_names
        found: Counter[str | None] = Counter()
        with closing(self.samples()) as samples:
            for _, label in tqdm(samples, desc=f"counting {self.path}", unit="image", delay=1):
                found[label] += 1
        if class_names is None:
            if None in found and len(found) > 1:
                total = found.total()
                log.info("note: %s: no classes: %d of %d have none", self.path, found[None], total)
            class_names = [] if None in found else sorted(map(str, found), key=natural_key)
        return found.total(), class_names


def _samples(archive: tarfile.TarFile, suffixes: Set[str]) -> Iterator[Sample]:
    """Yields the images of an archive, each with the class of its sample."""
    for _, files in groupby(files_in(archive), lambda file: sample_name(file[0])):
        images, sample_label = [], None
        for name, member, label in files:
            sample_label = sample_label or label
            if suffix_of(name) in suffixes and (file := archive.extractfile(member)) is not None:
                images.append((name, file.read() if member.size <= MAX_BYTES else None))
        if len(images) > 1:
            names = join_names([name for name, _ in images])
            raise UserError(f"a sample has several images: {names}")
        for _, content in images:
            yield content, sample_label


class StreamedImages(ImageList):
    """A stretch of a stream as an `ImageList`.

    Near an image that has been loaded, others load at once. For one further on, the stream is read
    up to there, and for one further back it is read anew.

    Args:
        stream: the stream.
        start, stop: numbers of the first image and of that after the last one.
        class_names: empty if there are no classes.
        block: how many images are kept together; the order may be changed within each such block.
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
        self._samples: Generator[Sample] | None = None  # from block `_next` on
        self._next = 0
        self._blocks: dict[int, list[Sample]] = {}  # the last two

    def __len__(self) -> int:
        return self.stop - self.start

    def load(self, index: int, least_side: int | None = None) -> AnyImage:
        """Decodes an image; raises `BrokenImageError`."""
        content, _ = self._sample(index)
        if content is None:
            raise BrokenImageError(f"no image, or one of more than {MAX_BYTES >> 20} MiB")
        name = f"{self.description}: {self.name(index)}"
        return self.reader.read(io.BytesIO(content), name, least_side)

    def label(self, index: int) -> int | None:
        """Returns the class of an image; None without classes."""
        if not self.class_names:
            return None
        _, label = self._sample(index)
        if label not in self._number:
            raise UserError(
                f"{self.description}: image {self.name(index)} is of the class {label}, which is "
                f"none of {join_names(self.class_names)}."
            )
        return self._number[label]

    def name(self, index: int) -> str:
        """Returns the number of the image in the stream."""
        return f"{self.start + index:08d}"

    def fingerprint(self) -> str:
        """Returns a digest of where the images come from, of their number, classes and reader."""
        of = self.stream
        place = of.path, of.name, of.split, of.image_column, of.label_column
        parts = place, self.start, self.stop, self.class_names, self.reader
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def close(self) -> None:
        """Ends the reading and forgets what was read; `load` begins anew."""
        if self._samples is not None:
            self._samples.close()
        self._samples, self._blocks = None, {}

    def _sample(self, index: int) -> Sample:
        number, place = divmod(index, self.block)
        if number not in self._blocks and (self._samples is None or number < self._next):
            self._begin()
        while number not in self._blocks:
            self._read_block()
        return self._blocks[number][place]

    def _begin(self) -> None:
        self.close()
        self._samples, self._next = self.stream.samples(), 0
        deque(islice(self._samples, self.start), maxlen=0)

    def _read_block(self) -> None:
        assert self._samples is not None
        first = self._next * self.block
        size = min(self.block, len(self) - first)
        samples = list(islice(self._samples, size))
        if len(samples) < size:
            raise UserError(
                f"{self.description} has ended after {self.start + first + len(samples)} images, "
                f"and not {self.stop}: correct data.source.num_images."
            )
        self._blocks.pop(self._next - 2, None)
        self._blocks[self._next] = samples
        self._next += 1
        if first + size == len(self):
            self._samples.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_samples": None, "_blocks": {}}
