"""What image and token data modules share: endless training batches, ordered validation."""

import os
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset

from taming.data.sampler import EndlessBatches
from taming.errors import UserError

__all__ = ["Batches", "EndlessDataModule", "num_cores"]

Batches = DataLoader[dict[str, Any]]


class EndlessDataModule(L.LightningDataModule):
    """Training batches that never end (see `EndlessBatches`), validation batches in order.

    A training's length is a number of steps; to resume, set `start_batch`. Under several ranks the
    trainer must not add its own sampler (`use_distributed_sampler=False`): training batches are
    dealt out already, and of the validation data rank r of W takes every W-th item from the r-th
    on, no item twice, so that one rank may get one item more than another.

    Args:
        batch_size: training items a step and rank.
        val_batch_size: validation items a batch and rank; None for `batch_size`.
        seed: of order and augmentation, not negative.

    Attributes:
        start_batch: number of the first training batch.
    """

    def __init__(self, *, batch_size: int, val_batch_size: int | None, seed: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.val_batch_size = val_batch_size or batch_size
        self.seed = seed
        self.start_batch = 0

    @property
    def train_dataset(self) -> Dataset[dict[str, Any]]:
        """The training items."""
        raise NotImplementedError

    @property
    def val_dataset(self) -> Dataset[dict[str, Any]]:
        """The validation items."""
        raise NotImplementedError

    def num_workers_for(self, dataset: Any) -> int:
        """How many processes load this data set."""
        raise NotImplementedError

    def train_dataloader(self) -> Batches:
        """Endless augmented batches for this rank, from `start_batch` on."""
        batches = EndlessBatches(
            len(self.train_dataset),  # type: ignore[arg-type]
            self.batch_size,
            seed=self.seed,
            rank=self._rank,
            world_size=self._world_size,
            start_batch=self.start_batch,
        )
        return self._loader(self.train_dataset, batch_sampler=batches)

    def val_dataloader(self) -> Batches:
        """This rank's validation items in order, not augmented."""
        num_items = len(self.val_dataset)  # type: ignore[arg-type]
        if num_items < self._world_size:
            raise UserError(
                f"{num_items} validation images are too few for {self._world_size} processes: each "
                "needs one."
            )
        indices = range(self._rank, num_items, self._world_size)
        return self._loader(self.val_dataset, sampler=indices, batch_size=self.val_batch_size)

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer is not None else 0

    @property
    def _world_size(self) -> int:
        return self.trainer.world_size if self.trainer is not None else 1

    def _loader(self, dataset: Dataset[dict[str, Any]], **batching: Any) -> Batches:
        num_workers = self.num_workers_for(dataset)
        return DataLoader(
            dataset,
            num_workers=num_workers,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=num_workers > 0,
            # its own, so that starting an iterator draws nothing from torch's global generator
            generator=torch.Generator().manual_seed(self.seed),
            **batching,
        )


def num_cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
