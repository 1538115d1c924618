"""With one process; with several, see `test_two_ranks.py`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from taming.runtime.errors import UserError
from taming.runtime.process_group import (
    from_first_rank,
    mean_over_ranks,
    on_first_rank,
    sum_over_ranks,
)


@pytest.fixture(params=["no group", "a group of one"])
def alone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    if request.param == "no group":
        yield
        return
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", [UserError, KeyError])
def test_errors_of_the_first_rank(kind: type[Exception]) -> None:
    def fail() -> None:
        raise kind("this", lambda: "cannot be pickled") if kind is KeyError else kind("this")

    with pytest.raises((UserError, KeyError, RuntimeError), match="this"):
        on_first_rank(fail)


@pytest.mark.usefixtures("alone")
def test_one_process_keeps_its_values_and_the_gradient_of_the_mean() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).T.requires_grad_()  # not contiguous
    for function in (sum_over_ranks, from_first_rank):
        assert torch.equal(function(values), values)
        assert not function(values).requires_grad
    assert torch.equal(mean_over_ranks(values), values)
    (gradient,) = torch.autograd.grad(mean_over_ranks(values).square().sum(), values)
    assert torch.equal(gradient, 2 * values)
