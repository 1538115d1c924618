"""Several processes keep the state that one has of the whole batch."""

import datetime
import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from taming.discriminators import ActNorm
from taming.losses import LeCAM


def _two_batches(part: slice) -> dict[str, torch.Tensor]:
    """The state after two batches of four images, of which this process has a part."""
    modules = nn.ModuleDict({"norm": ActNorm(3), "lecam": LeCAM(0.5)}).train()
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        real, fake = torch.randn(2, 4, 3, 5, 5, generator=generator) * 3 + 1
        modules["lecam"](modules["norm"](real[part]), modules["norm"](fake[part]))
    return modules.state_dict()


def _evaluate() -> None:
    """Evaluation, of modules that have not been trained, too."""
    norm, lecam = ActNorm(3).eval(), LeCAM(0.5).eval()
    x = torch.ones(2, 3, 5, 5)
    assert lecam(norm(x), norm(x)) == 2  # of means that are 0 still


def _rank(rank: int, directory: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "store"), 2)
    patience = datetime.timedelta(seconds=120)  # a rank that waits for nobody fails
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=patience)
    torch.save(_two_batches(slice(2 * rank, 2 * rank + 2)), directory / f"{rank}.pt")
    if rank == 0:
        _evaluate()  # no rank waits for another
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_keep_the_state_of_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_rank, args=(rank, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    whole, half = _two_batches(slice(0, 4)), _two_batches(slice(0, 2))
    assert (whole["norm.initialised"], whole["lecam.num_batches"]) == (True, 2)
    for name, tensor in whole.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], tensor, rtol=1e-4, atol=1e-5)
    for name in ("norm.scale", "norm.shift", "lecam.mean_real"):  # which a part alone does not give
        assert not torch.allclose(half[name], whole[name], rtol=1e-3)
