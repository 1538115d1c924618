"""Lightning data modules, one per stage: endless training batches, shuffled validation batches."""

import logging
import os
from functools import cached_property
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities.data import suggested_max_num_workers
from torch.utils.data import DataLoader

from taming.data.batches import EndlessBatches, LoaderOptions, make_loader
from taming.data.dataset import ImageDataset, Part, naming
from taming.data.readers import Reader
from taming.data.sources import DataSource
from taming.data.tokens import TokenDataset
from taming.data.transforms import ImageTransform
from taming.runtime.errors import UserError

__all__ = ["EndlessDataModule", "ImageDataModule", "TokenDataModule"]

Batches = DataLoader[dict[str, Any]]

log = logging.getLogger(__name__)


class EndlessDataModule(L.LightningDataModule):
    """Endless training batches (see `EndlessBatches`), and validation in a fixed order.

    The length of a training run is a number of steps. A resumed run continues with the next batch.
    The trainer must not add its own sampler (`use_distributed_sampler=False`), because the batches
    of a rank are its own already. Rank r of W takes every W-th validation item from the r-th on, so
    no item comes twice, and one rank may get one item more than another. Validation items are
    shuffled, the same way in every run, so that the first ones cover all classes.

    Subclasses have a `train_dataset`, whose keys are (index, draw), and a `val_dataset`. Both have
    `in_memory` and `block`, like an `ImageList`.

    Args:
        loader: batch sizes and loader processes.
        seed: seed of order and augmentation, not negative.

    Attributes:
        start_item: position of the first training item in the order of `EndlessBatches`.
    """

    train_dataset: Any
    val_dataset: Any
    test_dataset: Any = None  # for `evaluate`, if images are set aside

    def __init__(self, loader: LoaderOptions, seed: int = 0) -> None:
        super().__init__()
        self.loader = loader
        self.batch_size = loader.batch_size
        self.seed = seed
        self.start_item = self._start_step = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the next training item, and what it depends on."""
        assert self.trainer is not None
        step, images = self.trainer.global_step, self._images_per_step
        return {
            "next_item": self.start_item + (step - self._start_step) * images,
            "step": step,
            "images_per_step": images,
            "processes": self.trainer.world_size,
            "num_items": len(self.train_dataset),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues with the item in `state_dict`, and warns of changed conditions."""
        self.start_item, self._start_step = state_dict["next_item"], state_dict["step"]
        before, images = state_dict["processes"], state_dict["images_per_step"]
        rank, processes = self._ranks
        if rank > 0:
            return
        if processes != before:
            note = (
                "note: the run resumes with %d instead of %d processes. The order of the images "
                "stays the same. A step takes %d images instead of %d. Random numbers (dropout, "
                "noise, replaced codes), the rounding of sums, and normalisation over the batch of "
                "a process differ."
            )
            log.warning(note, processes, before, self._images_per_step, images)
        num_items = len(self.train_dataset)
        if num_items != state_dict["num_items"]:
            note = (
                "note: the run started with %d training images, and there are %d now. Their order "
                "changes, and other images may be held out for validation."
            )
            log.warning(note, state_dict["num_items"], num_items)

    @property
    def _images_per_step(self) -> int:
        batches = 1 if self.trainer is None else self.trainer.accumulate_grad_batches
        return self.batch_size * self._ranks[1] * batches

    def train_dataloader(self) -> Batches:
        """Returns a loader of the endless augmented batches of this rank, from `start_item` on."""
        dataset = self.train_dataset
        num_workers = self.num_workers_for(dataset)
        if num_workers and dataset.block is not None:
            dataset.images.close()  # only the loader processes read from now on
        return self._loader(dataset, num_workers, batch_sampler=self._batches())

    def first_batch(self) -> dict[str, Any]:
        """Loads the first training batch in this process."""
        keys = next(iter(self._batches()))
        return next(iter(self._loader(self.train_dataset, 0, batch_sampler=[keys])))

    def _batches(self) -> EndlessBatches:
        rank, world_size = self._ranks
        return EndlessBatches(
            len(self.train_dataset),
            self.batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            start_item=self.start_item,
            block=self.train_dataset.block,
        )

    def val_dataloader(self) -> Batches:
        """Returns a loader of the validation items of this rank, shuffled and not augmented."""
        num_items, (rank, world_size) = len(self.val_dataset), self._ranks
        if num_items < world_size:
            raise UserError(
                f"{num_items} validation images are too few for {world_size} processes, because "
                "each needs one."
            )
        shuffled = np.random.default_rng(0).permutation(num_items).tolist()
        return self._loader(
            self.val_dataset,
            self.num_workers_for(self.val_dataset),
            sampler=shuffled[rank::world_size],
            batch_size=self.loader.val_batch_size or self.batch_size,
        )

    def num_workers_for(self, dataset: Any) -> int:
        """Returns the number of processes that load this data set."""
        if self.loader.num_workers != "auto":
            return self.loader.num_workers
        if dataset.in_memory:
            return 0
        if dataset.block is not None:
            return 1  # each reads the whole stream
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # torchrun's
        if self.trainer is not None:
            processes = self.trainer.num_devices
        return min(8, suggested_max_num_workers(processes))

    @property
    def _ranks(self) -> tuple[int, int]:
        """The rank of this process, and the number of ranks."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _loader(self, dataset: Any, num_workers: int, **batching: Any) -> Batches:
        return make_loader(
            dataset,
            num_workers,
            collate_fn=getattr(dataset, "collate", None),
            pin_memory=torch.cuda.is_available(),
            persistent_workers=num_workers > 0,
            **batching,
        )


class ImageDataModule(EndlessDataModule):
    """Images for training, validation and, if the source sets some aside, testing.

    A batch is a dictionary: `images` float32 `(b c H W)`, pictures in [-1, 1] or one-hot label maps
    of 0 and 1; with classes, `labels` int64 `(b,)`; with pairs, `conditions` float32
    `(b c' H' W')`.

    Args:
        source: the data. It is opened once, by `setup` or when a data set is first used, unless
            `parts` are set to what another process has opened.
        transform: for all parts; only training images are augmented.
        loader: batch sizes and loader processes.
        seed: seed of order and augmentation, not negative.
        conditions: whether pairs have their conditions; the images are the same.

    Attributes:
        channels: channels of the images: 1, 3, or the number of classes of label maps.
        resolution, condition_resolution: (height, width) of images and conditions in pixels.
        label_maps: whether the images are one-hot label maps.
        palette: colours of the classes of label maps; None for generated ones.
        condition_reader: reads the conditions of pairs; None without pairs.
    """

    def __init__(
        self,
        source: DataSource,
        transform: ImageTransform,
        loader: LoaderOptions,
        seed: int = 0,
        *,
        conditions: bool = True,
    ) -> None:
        super().__init__(loader, seed)
        self.source = source
        self.transform = transform
        self.resolution, self.condition_resolution = transform.size, transform.condition_size
        self.channels, self.label_maps = source.reader.channels, source.reader.label_maps
        self.palette = getattr(source.reader, "palette", None)
        self.condition_reader: Reader | None = None
        if conditions:
            self.condition_reader = getattr(source, "condition_reader", None)
        pictures_alone = not self.label_maps and self.condition_reader is None
        if (transform.pad or transform.random_shift) and not pictures_alone:
            raise UserError(
                "label maps and pairs can be neither padded nor shifted: set pad=0, random_shift=0."
            )
        if (size := getattr(source, "image_size", None)) is not None:
            with naming(type(source).__name__):
                transform.check_size(size)

    def setup(self, stage: str | None = None) -> None:
        """Finds and checks the data once; raises a `UserError` if something is wrong with it."""
        if "_datasets" not in self.__dict__:
            log.info("%s", self.summary())

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The images for training, for validation and, if any, for testing."""
        return self.source.open()

    @cached_property
    def _datasets(self) -> list[ImageDataset]:
        parts = self.parts
        if self.condition_reader is None:
            parts = tuple(part._replace(conditions=None) for part in parts)
        return [ImageDataset(part, self.transform, seed=self.seed) for part in parts]

    @property
    def train_dataset(self) -> ImageDataset:
        """The training images."""
        return self._datasets[0]

    @property
    def val_dataset(self) -> ImageDataset:
        """The validation images."""
        return self._datasets[1]

    @property
    def test_dataset(self) -> ImageDataset | None:
        """The images set aside for `evaluate`; None without them."""
        return self._datasets[2] if len(self._datasets) > 2 else None

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None without classes."""
        return len(self.class_names) or None

    @property
    def class_names(self) -> list[str]:
        """Names by class number; empty without classes."""
        return self.train_dataset.images.class_names

    def summary(self) -> str:
        """Describes the number, classes, size and kind of the images."""
        train, val, *test = self._datasets
        noun, kind = "images", str(self.source.reader)
        if self.condition_reader is not None:
            noun, kind = "pairs", f"{kind} from {self.condition_reader}"
        tested = f"{len(test[0]):,} set aside to test, " if test else ""
        sources = dict.fromkeys(part.images.description for part in self._datasets)
        text = (
            f"{' and '.join(sources)}: {len(train):,} {noun} to train and {len(val):,} to "
            f"validate, {tested}{self.num_classes or 'no'} classes, "
            f"{self.resolution[0]}x{self.resolution[1]}, {kind}"
        )
        if magnified := train.num_magnified + val.num_magnified:
            text += f"; {magnified:,} smaller than that and enlarged"
        return text


class TokenDataModule(EndlessDataModule):
    """Token caches for training and validation; see `EndlessDataModule`."""

    def __init__(
        self, train: TokenDataset, val: TokenDataset, loader: LoaderOptions, seed: int = 0
    ) -> None:
        super().__init__(loader, seed)
        self.train_dataset, self.val_dataset = train, val
