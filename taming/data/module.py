"""Lightning's data modules, one a stage: endless training batches, ordered validation."""

import logging
from functools import cached_property
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from taming.data.batches import EndlessBatches, LoaderOptions, num_cores
from taming.data.dataset import ImageDataset
from taming.data.files import some
from taming.data.images import Reader
from taming.data.sources import DataSource
from taming.data.tokens import TokenDataset
from taming.data.transforms import ImageTransform
from taming.errors import UserError

__all__ = ["EndlessDataModule", "ImageDataModule", "TokenDataModule"]

Batches = DataLoader[dict[str, Any]]

log = logging.getLogger(__name__)


class EndlessDataModule(L.LightningDataModule):
    """Training batches that never end (see `EndlessBatches`), validation batches in order.

    A training's length is a number of steps; a resumed one goes on with the batch that follows.
    Under several ranks the trainer must not add its own sampler (`use_distributed_sampler=False`):
    training batches are dealt out already, and of the validation data rank r of W takes every W-th
    item from the r-th on, no item twice, so that one rank may get one item more than another.

    Subclasses have a `train_dataset`, whose keys are (index, draw), and a `val_dataset`.

    Args:
        loader: see there.
        seed: of order and augmentation, not negative.

    Attributes:
        start_batch: number of the first training batch.
    """

    train_dataset: Any
    val_dataset: Any

    def __init__(self, loader: LoaderOptions, seed: int = 0) -> None:
        super().__init__()
        self.loader = loader
        self.batch_size = loader.batch_size
        self.seed = seed
        self.start_batch = 0

    def state_dict(self) -> dict[str, Any]:
        """The number of the next training batch."""
        assert self.trainer is not None
        return {"next_batch": self.trainer.global_step * self.trainer.accumulate_grad_batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with that batch."""
        self.start_batch = state_dict["next_batch"]

    def train_dataloader(self) -> Batches:
        """Endless augmented batches for this rank, from `start_batch` on."""
        rank, world_size = self._ranks
        batches = EndlessBatches(
            len(self.train_dataset),
            self.batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            start_batch=self.start_batch,
        )
        return self._loader(self.train_dataset, batch_sampler=batches)

    def val_dataloader(self) -> Batches:
        """This rank's validation items in order, not augmented."""
        num_items, (rank, world_size) = len(self.val_dataset), self._ranks
        if num_items < world_size:
            raise UserError(
                f"{num_items} validation images are too few for {world_size} processes: each "
                "needs one."
            )
        return self._loader(
            self.val_dataset,
            sampler=range(rank, num_items, world_size),
            batch_size=self.loader.val_batch_size or self.batch_size,
        )

    def num_workers_for(self, dataset: Any) -> int:
        """How many processes load this data set."""
        if self.loader.num_workers != "auto":
            return self.loader.num_workers
        return 0 if getattr(dataset, "in_memory", True) else min(8, num_cores() - 1)

    @property
    def _ranks(self) -> tuple[int, int]:
        """This process's rank, and how many there are."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _loader(self, dataset: Any, **batching: Any) -> Batches:
        num_workers = self.num_workers_for(dataset)
        return DataLoader(
            dataset,
            num_workers=num_workers,
            collate_fn=getattr(dataset, "collate", None),
            pin_memory=torch.cuda.is_available(),
            persistent_workers=num_workers > 0,
            # its own, so that starting an iterator draws nothing from torch's global generator
            generator=torch.Generator().manual_seed(self.seed),
            **batching,
        )


class ImageDataModule(EndlessDataModule):
    """Images for training and validation.

    A batch is a dictionary: `images` float32 `(b c H W)`, pictures in [-1, 1] or one-hot label maps
    of 0 and 1; with classes, `labels` int64 `(b,)`; of pairs, `conditions` float32 `(b c' H' W')`.

    Args:
        source: where the images are; opened once, by `setup`.
        transform: applied to both parts; validation images are not augmented.
        loader: see there.
        seed: of order and augmentation, not negative.

    Attributes:
        channels: of the images: 1, 3, or the number of classes of label maps.
        resolution: (height, width) of the images in pixels.
        condition_reader: reads the conditions of pairs; None without.
    """

    def __init__(
        self, source: DataSource, transform: ImageTransform, loader: LoaderOptions, seed: int = 0
    ) -> None:
        super().__init__(loader, seed)
        self.source = source
        self.transform = transform
        self.resolution = transform.size
        self.channels = source.reader.channels
        self.condition_reader: Reader | None = getattr(source, "condition_reader", None)
        if (size := getattr(source, "image_size", None)) is not None:
            transform.check_size(size, f"an image of {type(source).__name__}")
        if (transform.pad or transform.random_shift) and (
            source.reader.label_maps or self.condition_reader is not None
        ):
            raise UserError("label maps and pairs can be neither padded nor shifted.")

    def setup(self, stage: str | None = None) -> None:
        """Finds and checks the data, once; raises the `UserError`s of doing so."""
        if "_datasets" not in self.__dict__:
            log.info("%s", self.summary())

    @cached_property
    def _datasets(self) -> list[ImageDataset]:
        return [ImageDataset(part, self.transform, seed=self.seed) for part in self.source.open()]

    @property
    def train_dataset(self) -> ImageDataset:
        """The training images; sets up if need be."""
        return self._datasets[0]

    @property
    def val_dataset(self) -> ImageDataset:
        """The validation images; sets up if need be."""
        return self._datasets[1]

    @property
    def num_classes(self) -> int | None:
        """How many classes there are; None without classes."""
        return len(self.class_names) or None

    @property
    def class_names(self) -> list[str]:
        """Names by class number; empty without classes."""
        return self.train_dataset.source.class_names

    @property
    def of_label_maps(self) -> bool:
        """Whether the images are one-hot label maps."""
        return self.source.reader.label_maps

    @property
    def condition_resolution(self) -> tuple[int, int]:
        """(height, width) of the conditions in pixels."""
        return self.transform.condition_size

    def summary(self) -> str:
        """How many images and classes there are, and what was left out or enlarged, if any."""
        train, val = self._datasets
        parts = [train, val][: 1 + (train.source is not val.source)]
        noun, kind = "images", str(self.source.reader)
        if self.condition_reader is not None:
            noun, kind = "pairs", f"{kind} from {self.condition_reader}"
            if self.condition_resolution != self.resolution:
                kind += ", {}x{}".format(*self.condition_resolution)
        classes = f"{self.num_classes or 'no'} classes"
        lines = [
            f"{' and '.join(part.source.description for part in parts)}: {len(train):,} {noun} "
            f"to train and {len(val):,} to validate, {classes}, "
            f"{self.resolution[0]}x{self.resolution[1]}, {kind}"
        ]
        if broken := [name for part in parts for name, _ in part.broken]:
            lines.append(f"{len(broken):,} broken files left out: {some(broken)}")
        if magnified := train.num_magnified + val.num_magnified:
            lines.append(f"{magnified:,} {noun} smaller than that and enlarged")
        return "\n".join(lines)


class TokenDataModule(EndlessDataModule):
    """Token caches for training and validation.

    Args:
        train: the training images' cache.
        val: the validation images' cache.
        loader, seed: see `EndlessDataModule`.
    """

    def __init__(
        self, train: TokenDataset, val: TokenDataset, loader: LoaderOptions, seed: int = 0
    ) -> None:
        super().__init__(loader, seed)
        self.train_dataset, self.val_dataset = train, val
