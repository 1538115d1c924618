"""Batches of images: their sizes, and their endless order."""

import os
import signal
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import count
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch.utils.data import DataLoader, Dataset, Sampler

__all__ = ["EndlessBatches", "LoaderOptions", "make_loader"]


@dataclass(frozen=True)
class LoaderOptions:
    """Batch sizes, and the number of processes that load batches.

    Args:
        batch_size: training images per step and rank.
        val_batch_size: validation images per batch and rank; None for `batch_size`.
        num_workers: loader processes per rank and part; `auto` is one less than the rank's share
            of the machine's cores, at most 8, and 0 for data in memory.
    """

    batch_size: Annotated[int, Ge(1)]
    val_batch_size: Annotated[int, Ge(1)] | None = None
    num_workers: Annotated[int, Ge(0)] | Literal["auto"] = "auto"


@dataclass
class EndlessBatches(Sampler[list[tuple[int, int]]]):
    """Yields batches of `(index, draw)` for ever, a pure function of the seed and the batch number.

    The stream is one seeded permutation of the data after the other, so each pass holds every item
    once and no item is dropped. With b items per batch and W ranks, global batch k covers b·W of
    the stream's positions, and rank r takes the r-th run of b of them. `draw` is the position:
    unique in a training, it seeds the item's augmentation. There is no length.

    Args:
        num_items: number of items in the data set.
        batch_size: b, items per batch and rank.
        seed: seed of the permutations, not negative.
        rank, world_size: r, this process's rank, and W.
        start_item: position in the stream where a resumed training goes on.
        block: items are permuted within blocks of so many neighbours; None: among all.
    """

    num_items: int
    batch_size: int
    _: KW_ONLY
    seed: int
    rank: int = 0
    world_size: int = 1
    start_item: int = 0
    block: int | None = None

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        pass_number, order = -1, np.empty(0, dtype=np.int64)
        for batch in count():
            before = (batch * self.world_size + self.rank) * self.batch_size
            start = self.start_item + before
            items = []
            for position in range(start, start + self.batch_size):
                if position // self.num_items != pass_number:
                    pass_number = position // self.num_items
                    # the last word keeps these streams apart from the augmentation's, seeded with
                    # (seed, draw)
                    rng = np.random.default_rng((self.seed, pass_number, 1))
                    order = rng.permutation(self.num_items)
                    if self.block is not None:
                        order = order[np.argsort(order // self.block, kind="stable")]
                items.append((int(order[position % self.num_items]), position))
            yield items


def make_loader(dataset: Dataset[Any], num_workers: int, **batching: Any) -> DataLoader[Any]:
    """Makes a loader with a random generator of its own.

    Starting an iterator then draws nothing from PyTorch's global one, so a run that finds its token
    cache draws the same numbers as one that makes it.
    """
    if num_workers and getattr(dataset, "block", None) is not None:
        batching["multiprocessing_context"] = "spawn"  # a fork would copy a thread's locks
    return DataLoader(
        dataset,
        num_workers=num_workers,
        generator=torch.Generator(),
        worker_init_fn=leave_signals,
        **batching,
    )


def leave_signals(worker: int) -> None:
    """Lets a loader's process ignore what ends a training after its step: that ends its loaders."""
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2"):  # by SIGTERM multiprocessing ends a process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if os.environ.get("PL_SEED_WORKERS") == "1":  # Lightning does, where no function is given
        from lightning.fabric.utilities.seed import pl_worker_init_function

        pl_worker_init_function(worker)
