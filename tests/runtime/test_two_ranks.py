"""Two processes with half of each batch do what one does with the whole of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing import assert_close
from two_processes import in_two

from taming.discriminators import ActNorm
from taming.losses import LeCAM
from taming.quantizers import VectorQuantizer, build_quantizer
from taming.quantizers.codebook import kmeans
from taming.quantizers.entropy import entropy_penalty

CODES = {"codebook_size": 12, "codebook_dim": 4}
ALL_OPTIONS = {"entropy_weight": 0.1, "ema_decay": 0.9, "init": "kmeans", "revive_after": 2}
EVERY: dict[str, dict[str, Any]] = {
    "vector": {"kind": "vector", **CODES, **ALL_OPTIONS},
    "gumbel": {"kind": "gumbel", **CODES},
    "finite_scalar": {"kind": "finite_scalar", "levels": [8, 5, 4, 3]},
}


def ema(part: slice) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(6, 4, 3, 5, 5, generator=generator)
    torch.manual_seed(0)
    quantizer = VectorQuantizer(codebook_size=12, codebook_dim=3, ema_decay=0.7).train()
    for batch in batches:
        quantizer(batch[part])
    return quantizer.state_dict()


def unused(part: slice) -> dict[str, Any]:
    settings = {"codebook_size": 4, "codebook_dim": 1, "revive_after": 100}
    quantizer = VectorQuantizer(**settings, init="uniform").train()
    with torch.no_grad():
        quantizer.codebook.copy_(torch.arange(4.0)[:, None])
    for _ in range(3):  # each rank sees another code, nobody the last two
        quantizer(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)[part])
    return quantizer.state_dict()


def clusters(part: slice) -> dict[str, Any]:
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    halves = rows.view(4, 10, 3)[part].reshape(-1, 3)
    return {"centres": kmeans(halves, rows[:7])}


def penalty(part: slice) -> dict[str, Any]:
    rows = torch.randn(4, 10, 3, generator=torch.Generator().manual_seed(0))
    scale = torch.ones(3, requires_grad=True)  # a shared weight
    distances = (rows[part].reshape(-1, 3) * scale).square()
    value = entropy_penalty([distances], 0.5, over_ranks=True)
    (gradient,) = torch.autograd.grad(value, scale)
    return {"value": value.detach(), "gradient": gradient}


def random_start(part: slice) -> dict[str, Any]:
    state: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(5, 4, 3, 5, 5, generator=generator)
    for init in ("data", "kmeans"):
        torch.manual_seed(part.start or 0)  # each rank has random numbers of its own
        settings = {"codebook_size": 30, "codebook_dim": 3, "revive_after": 2, "ema_decay": 0.9}
        quantizer = VectorQuantizer(**settings, init=init).train()
        for batch in batches:
            quantizer(batch[part])
        state |= {f"{init}.{name}": value for name, value in quantizer.state_dict().items()}
    return state


def actnorm_and_lecam(part: slice) -> dict[str, Any]:
    modules = nn.ModuleDict({"norm": ActNorm(3), "lecam": LeCAM(0.5)}).train()
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        real, fake = torch.randn(2, 4, 3, 5, 5, generator=generator) * 3 + 1
        modules["lecam"](modules["norm"](real[part]), modules["norm"](fake[part]))
    return modules.state_dict()


def uneven_evaluation(part: slice) -> dict[str, Any]:
    """Two batches for the first rank, none for the second, as at the end of a validation."""
    z = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))
    losses = {}
    for name, config in EVERY.items():
        torch.manual_seed(0)
        quantizer = build_quantizer(config).eval()
        for _ in range(2 if part.start == 0 else 0):
            losses[name] = quantizer(z).loss.detach()
    norm, lecam = ActNorm(3).eval(), LeCAM(0.5).eval()
    if part.start == 0:
        losses["lecam"] = lecam(norm(z[:, :3]), norm(z[:, :3]))
    return losses


WORK = (ema, unused, clusters, penalty, random_start, actnorm_and_lecam, uneven_evaluation)


def all_work(folder: Path) -> dict[str, dict[str, Any]]:
    rank = dist.get_rank()
    part, small = slice(2 * rank, 2 * rank + 2), slice(rank, rank + 1)
    return {work.__name__: work(small if work is unused else part) for work in WORK}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_two(all_work, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("work", [ema, clusters, actnorm_and_lecam])
def test_each_rank_equals_the_whole_batch(
    ranks: list[dict[str, Any]], work: Callable[[slice], dict[str, Any]]
) -> None:
    whole = work(slice(None))
    for rank in ranks:
        assert_close(rank[work.__name__], whole)
    half = work(slice(0, 2))
    with pytest.raises(AssertionError):  # a part alone does not give it
        assert_close(half, whole)


def test_use_is_counted_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["unused"]["batches_unused"].tolist() == [0, 0, 3, 3]


def test_the_mean_penalty_equals_that_of_the_whole_batch(ranks: list[dict[str, Any]]) -> None:
    one, other = (rank["penalty"] for rank in ranks)
    assert_close({name: (one[name] + other[name]) / 2 for name in one}, penalty(slice(None)))


def test_starting_and_reviving_agree_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    one, other = (rank["random_start"] for rank in ranks)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert one["data.codebook"].abs().max() > 0.2  # moved: uniform codes are within 1 / 30


def test_in_evaluation_no_rank_waits_for_another(ranks: list[dict[str, Any]]) -> None:
    one, other = (rank["uneven_evaluation"] for rank in ranks)
    assert one.keys() == {*EVERY, "lecam"}
    assert other == {}
    assert_close(one, uneven_evaluation(slice(0, 2)))  # the local mean, as of a process on its own
