"""Work done in two processes of one group."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

Work = Callable[[Path], Any]


def in_two(work: Work, folder: Path) -> list[Any]:
    """What `work`, a function of a module, returns in each of them."""
    multiprocessing.spawn(_on_rank, (work, folder), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def _on_rank(rank: int, work: Work, folder: Path) -> None:
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=120)  # a rank that waits for nobody fails the tests
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=2, timeout=patience)
    torch.save(work(folder), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
