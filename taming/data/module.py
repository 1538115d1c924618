"""The LightningDataModule around a training and a validation data set."""

import logging
from collections.abc import Callable
from typing import Literal, NamedTuple

from taming.data.dataset import ImageDataset, Source
from taming.data.label_maps import LabelMapTransform
from taming.data.loading import EndlessDataModule, num_cores
from taming.data.split import held_out_split
from taming.data.transforms import ImageTransform
from taming.errors import UserError

__all__ = ["ImageDataModule", "NumWorkers", "Part", "hold_out"]

NumWorkers = int | Literal["auto"]

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """Some of a source's images; all if `indices` is None."""

    source: Source
    indices: list[int] | None = None


def hold_out(source: Source, fraction: float) -> tuple[Part, Part]:
    """Splits a source into training and validation (see `held_out_split`); warns if it cannot."""
    names = [source.name(i) for i in range(len(source))]
    labels = [source.label(i) for i in range(len(source))]
    train, val = held_out_split(names, labels, fraction)
    if train == val:
        log.warning(
            "note: no image can be held out (each is the last of its class), so validation is on "
            "the training images: its numbers say nothing about new ones. Give more images, or a "
            "data.val_path."
        )
    return Part(source, train), Part(source, val)


class ImageDataModule(EndlessDataModule):
    """Images for training and validation.

    Training batches never end (see `EndlessBatches`), so a training's length is a number of steps.
    To resume, set `start_batch`. Under several ranks the trainer must not add its own sampler
    (`use_distributed_sampler=False`): training batches are already dealt out, and of the validation
    data rank r of W takes every W-th image from the r-th on, no image twice, so that one rank may
    get one image more than another.

    A batch is a dictionary: `images` float32 `(b c H W)`, pictures in [-1, 1] or one-hot label maps
    of 0 and 1, and, with classes, `labels` int64 `(b,)`.

    Args:
        open_parts: called once, by `setup`: finds and checks the data.
        transform: applied to both parts; validation images are not augmented.
        channels: of the images: 1, 3, or the number of classes of label maps.
        batch_size: training images a step and rank.
        val_batch_size: validation images a batch and rank; None for `batch_size`.
        num_workers: loader processes a rank and part; `auto` is one less than the cores, at most 8,
            and 0 for data in memory.
        seed: of order and augmentation, not negative.
    """

    def __init__(
        self,
        open_parts: Callable[[], tuple[Part, Part]],
        transform: ImageTransform,
        *,
        channels: int,
        batch_size: int,
        val_batch_size: int | None = None,
        num_workers: NumWorkers = "auto",
        seed: int = 0,
    ) -> None:
        self._kind = transform.kind(channels)
        if batch_size < 1 or (val_batch_size is not None and val_batch_size < 1):
            raise UserError("data.batch_size and data.val_batch_size must be 1 or more.")
        if num_workers != "auto" and (not isinstance(num_workers, int) or num_workers < 0):
            raise UserError(
                f"data.num_workers is {num_workers}: give a number, 0 or more, or auto."
            )
        if seed < 0:
            raise UserError(f"seed is {seed}: it must not be negative.")
        super().__init__(batch_size=batch_size, val_batch_size=val_batch_size, seed=seed)
        self.transform = transform
        self.resolution = transform.size
        self.channels = channels
        self._open_parts = open_parts
        self._num_workers = num_workers
        self._datasets: tuple[ImageDataset, ImageDataset] | None = None

    def setup(self, stage: str | None = None) -> None:
        """Finds and checks the data, once; raises the `UserError`s of doing so."""
        if self._datasets is not None:
            return
        train, val = (
            ImageDataset(part.source, self.transform, seed=self.seed, indices=part.indices)
            for part in self._open_parts()
        )
        self._datasets = train, val
        log.info("%s", self.summary())

    @property
    def train_dataset(self) -> ImageDataset:
        """The training images; sets up if need be."""
        self.setup()
        assert self._datasets is not None
        return self._datasets[0]

    @property
    def val_dataset(self) -> ImageDataset:
        """The validation images; sets up if need be."""
        self.setup()
        assert self._datasets is not None
        return self._datasets[1]

    @property
    def num_classes(self) -> int | None:
        """How many classes there are; None without classes."""
        return self.train_dataset.num_classes

    @property
    def class_names(self) -> list[str]:
        """Names by class number; empty without classes."""
        return self.train_dataset.class_names

    @property
    def of_label_maps(self) -> bool:
        """Whether the images are one-hot label maps."""
        return isinstance(self.transform, LabelMapTransform)

    def images_alone(self) -> "ImageDataModule":
        """The data without what belongs to images besides their classes; here all of it."""
        return self

    def num_workers_for(self, dataset: ImageDataset) -> int:
        """How many processes load this data set."""
        if self._num_workers != "auto":
            return self._num_workers
        return 0 if dataset.source.in_memory else min(8, num_cores() - 1)

    def summary(self) -> str:
        """How many images and classes; in a second line what was left out or enlarged, if any."""
        train, val = self.train_dataset, self.val_dataset
        height, width = self.resolution
        sources = list({id(part.source): part.source for part in (train, val)}.values())
        broken = [name for source in sources for name, _ in source.broken]
        broken += train.replaced + val.replaced
        classes = f"{self.num_classes} classes" if self.num_classes else "no classes"
        noun = self.transform.noun
        named = f" ({', '.join(broken[:10])}{', …' if len(broken) > 10 else ''})" if broken else ""
        line = (
            f"{' and '.join(source.description for source in sources)}: {len(train):,} {noun} to "
            f"train and {len(val):,} to validate, {classes}, {height}x{width}, "
            f"{self._kind}"
        )
        remarks = []
        if broken:
            remarks.append(f"{len(broken):,} broken files{named} left out")
        if magnified := train.num_magnified + val.num_magnified:
            remarks.append(f"{magnified:,} {noun} smaller than that and enlarged")
        return "\n".join([line, *filter(None, ["; ".join(remarks)])])
