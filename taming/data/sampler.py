"""The order in which training sees the data: endless, seeded, restartable at any batch."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

__all__ = ["EndlessBatches"]


class EndlessBatches(Sampler[list[tuple[int, int]]]):
    """Yields batches of `(index, draw)` for ever, a pure function of the seed and the batch number.

    The stream is one seeded permutation of the data after the other, so each pass holds every item
    once and no item is dropped. Of b items and W ranks, global batch k covers the stream's
    positions k·b·W to (k+1)·b·W, and rank r takes the r-th run of b of them. `draw` is the
    position: unique in a training, it seeds the item's augmentation. Has no length.

    Args:
        num_items: how many items the data set has.
        batch_size: b, items a batch and rank.
        seed: of the permutations, not negative.
        rank: r, of this process.
        world_size: W, number of processes.
        start_batch: number of the first batch to yield, of a resumed training.
    """

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        start_batch: int = 0,
    ) -> None:
        assert num_items > 0 and batch_size > 0 and 0 <= rank < world_size
        self.num_items = num_items
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.start_batch = start_batch

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        batch = self.start_batch
        pass_number, order = -1, np.empty(0, dtype=np.int64)
        while True:
            start = (batch * self.world_size + self.rank) * self.batch_size
            items = []
            for position in range(start, start + self.batch_size):
                if position // self.num_items != pass_number:
                    pass_number = position // self.num_items
                    # the last word keeps these streams apart from the augmentation's, seeded with
                    # (seed, draw)
                    rng = np.random.default_rng((self.seed, pass_number, 1))
                    order = rng.permutation(self.num_items)
                items.append((int(order[position % self.num_items]), position))
            yield items
            batch += 1
