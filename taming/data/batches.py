"""Batches of images: their sizes, their endless order, and their loader."""

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
        num_workers: loader processes per rank and part. `auto` is one less than the rank's share of
            the machine's cores, at most 8, and 0 for data in memory.
    """

    batch_size: Annotated[int, Ge(1)]
    val_batch_size: Annotated[int, Ge(1)] | None = None
    num_workers: Annotated[int, Ge(0)] | Literal["auto"] = "auto"


@dataclass
class EndlessBatches(Sampler[list[tuple[int, int]]]):
    """Yields batches of `(index, draw)` forever, a pure function of the seed and the batch number.

    The stream is a series of seeded permutations of the data, so each pass has every item once and
    drops none. With b items per batch and W ranks, global batch k covers b·W positions of
    the stream, and rank r takes the r-th run of b positions. `draw` is the position. It is unique
    in a training run and seeds the augmentation of the item.

    Args:
        num_items: number of items in the data set.
        batch_size: b, items per batch and rank.
        seed: seed of the permutations, not negative.
        rank: r, the rank of this process.
        world_size: W, the number of ranks.
        start_item: position in the stream at which a resumed training continues.
        block: permute items within blocks of this many neighbours; None to permute all.
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
            start = self.start_item + (batch * self.world_size + self.rank) * self.batch_size
            items = []
            for position in range(start, start + self.batch_size):
                if position // self.num_items != pass_number:
                    pass_number = position // self.num_items
                    # the 1 keeps this stream apart from the augmentation's (seed, draw)
                    rng = np.random.default_rng((self.seed, pass_number, 1))
                    order = rng.permutation(self.num_items)
                    if self.block is not None:
                        order = order[np.argsort(order // self.block, kind="stable")]
                items.append((int(order[position % self.num_items]), position))
            yield items


def make_loader(dataset: Dataset[Any], num_workers: int, **batching: Any) -> DataLoader[Any]:
    """Makes a loader with its own random generator.

    Starting an iterator then draws nothing from PyTorch's global generator, so a run that finds its
    token cache draws the same numbers as a run that makes it.
    """
    if num_workers and getattr(dataset, "block", None) is not None:
        batching["multiprocessing_context"] = "spawn"  # network file systems run threads
    return DataLoader(
        dataset,
        num_workers=num_workers,
        generator=torch.Generator(),
        worker_init_fn=ignore_signals,
        **batching,
    )


def ignore_signals(worker: int) -> None:
    """Makes a loader process ignore the signals that stop training after the current step."""
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2"):  # multiprocessing itself uses SIGTERM
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if os.environ.get("PL_SEED_WORKERS") == "1":  # Lightning seeds only loaders without a function
        from lightning.fabric.utilities.seed import pl_worker_init_function

        pl_worker_init_function(worker)
