"""Properties of every kind of position, learned positions, and grid coordinates."""

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
COORDINATES = grid_coordinates((3, 4)).flatten(0, 1)


class Rotated(nn.Module):
    """Rotary positions as a map of `(b n dim)`: one head."""

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


@pytest.fixture(params=KINDS)
def module(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[request.param]()


def test_a_token_depends_only_on_its_own_position(module: nn.Module) -> None:
    x, positions = torch.randn(2, N, DIM), torch.arange(N)
    whole = module(x, positions)
    parts = [module(x[:, part], part) for part in positions.split([5, 1, 6])]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    order = torch.randperm(N)
    assert torch.equal(module(x[:, order], order), whole[:, order])


def test_no_two_positions_are_alike(module: nn.Module) -> None:
    outputs = module(torch.ones(1, N, DIM), torch.arange(N))[0].detach()
    assert torch.unique(outputs.round(decimals=4), dim=0).shape == (N, DIM)


def test_the_dtype_stays(module: nn.Module) -> None:
    x = torch.zeros(1, 1, DIM, dtype=torch.bfloat16)
    assert module.bfloat16()(x, torch.tensor([N - 1])).dtype == torch.bfloat16


@pytest.mark.compile
def test_one_compiled_step_serves_every_position(module: nn.Module) -> None:
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


def test_grid_coordinates_are_row_and_column() -> None:
    coordinates = grid_coordinates((2, 5))
    assert coordinates.dtype == torch.float32
    assert coordinates.tolist() == [[[row, column] for column in range(5)] for row in range(2)]
    assert torch.equal(grid_coordinates((3, 5), (3, 5)), grid_coordinates((3, 5)))


def test_grid_coordinates_align_with_a_finer_or_coarser_grid() -> None:
    coarse = grid_coordinates((2, 2), (4, 6))
    blocks = grid_coordinates((4, 6)).view(2, 2, 2, 3, 2)  # (row, row in cell, column, …, 2)
    torch.testing.assert_close(coarse, blocks.mean(dim=(1, 3)))  # the middle of the covered cells
    fine = grid_coordinates((4, 1), (2, 1))
    assert fine[:, 0].tolist() == [[-0.25, 0.0], [0.25, 0.0], [0.75, 0.0], [1.25, 0.0]]
