"""What every kind of position has in common, and the learned ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from taming.positions import (
    LearnedPositions,
    RotaryPositions2D,
    SinusoidalPositions,
    SinusoidalPositions2D,
    grid_coordinates,
)

N, DIM = 12, 8
COORDINATES = grid_coordinates((3, 4))


class Rotated(nn.Module):
    """Rotary positions seen as a map of `(b n dim)`: one head."""

    def __init__(self) -> None:
        super().__init__()
        self.rotary = RotaryPositions2D(DIM, COORDINATES)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.rotary.rotation(positions)(x[:, None])[:, 0]


KINDS: dict[str, Callable[[], nn.Module]] = {
    "sinusoidal": lambda: SinusoidalPositions(DIM, length=N),
    "sinusoidal_2d": lambda: SinusoidalPositions2D(DIM, COORDINATES),
    "learned": lambda: LearnedPositions(N, DIM),
    "rotary_2d": Rotated,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_depends_on_its_own_position_alone(kind: str) -> None:
    torch.manual_seed(0)
    module = KINDS[kind]()
    x = torch.randn(2, N, DIM)
    positions = torch.arange(N)
    whole = module(x, positions)
    parts = [
        module(x[:, part], positions[part]) for part in (slice(0, 5), slice(5, 6), slice(6, N))
    ]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    order = torch.randperm(N)
    assert torch.equal(module(x[:, order], order), whole[:, order])


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_positions_are_alike(kind: str) -> None:
    torch.manual_seed(0)
    placed = KINDS[kind]()(torch.ones(1, N, DIM), torch.arange(N))[0].detach()
    assert torch.unique(placed.round(decimals=4), dim=0).shape == (N, DIM)


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_keep_their_type(kind: str) -> None:
    module = KINDS[kind]().bfloat16()
    x = torch.zeros(1, 1, DIM, dtype=torch.bfloat16)
    assert module(x, torch.tensor([N - 1])).dtype == torch.bfloat16


@pytest.mark.compile
@pytest.mark.parametrize("kind", KINDS)
def test_one_compiled_step_serves_every_position(kind: str) -> None:
    torch.manual_seed(0)
    module = KINDS[kind]()
    x = torch.randn(2, 1, DIM)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable:
        graphs.append(graph)
        return graph.forward

    step = torch.compile(module, backend=backend, fullgraph=True)
    for position in (0, 5, N - 1):
        positions = torch.tensor([position])
        assert torch.equal(step(x, positions), module(x, positions))
    assert len(graphs) == 1


def test_only_learned_positions_are_saved() -> None:
    names = {kind: list(build().state_dict()) for kind, build in KINDS.items()}
    assert names.pop("learned") == ["embedding.weight"]
    assert set(map(len, names.values())) == {0}


def test_learned_positions_add_a_row_of_their_table() -> None:
    module = LearnedPositions(4, 6)
    x = torch.randn(1, 2, 6)
    added = module(x, torch.tensor([3, 1])) - x
    torch.testing.assert_close(added[0], module.embedding.weight[[3, 1]])
