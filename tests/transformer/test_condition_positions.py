"""Rows and columns of a condition in two dimensions: those of the image's cells it lies on.

A grid of 2 × 3 codes, and a condition of 4 × 3 over the same picture: two of its rows to one of the
image's, so that their centres lie a quarter of a row above and below that one's.
"""

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from taming.positions import SinusoidalPositions2D
from taming.transformer import GPT, GPTConfig
from taming.transformer.gpt import SINUSOID_SCALE

IMAGE = torch.tensor(list(product([0.0, 1.0], [0.0, 1.0, 2.0])))  # (row, column) of each cell
CONDITION = torch.tensor(list(product([-0.25, 0.25, 0.75, 1.25], [0.0, 1.0, 2.0])))
PREFIX = {"prefix_length": 12, "prefix_grid_size": [4, 3], "context_length": 18}
CONTEXT = {"num_context_ids": 3, "context_grid_size": [4, 3], "context_length": 7}


def tiny(**changes: Any) -> GPT:
    """One layer; of what it embeds nothing is left but the positions."""
    config: dict[str, Any] = {
        "codebook_size": 11,
        "num_prefix_ids": 3,
        "num_layers": 1,
        "num_heads": 1,
        "embed_dim": 8,
        "grid_size": [2, 3],
    }
    model = GPT(GPTConfig(**{**config, **changes}))
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.zeros_(module.weight)
    return model


def call(model: GPT) -> None:
    num_prefix = model.config.prefix_length
    ids = [torch.zeros(1, length, dtype=torch.long) for length in (num_prefix, 6, 12)]
    with torch.no_grad():
        model(ids[0], ids[1], context=ids[2])


def inputs_of(module: nn.Module, model: GPT) -> Tensor:
    seen: list[Tensor] = []
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    call(model)
    (x,) = seen
    return x[0]


def sinusoids(coordinates: Tensor) -> Tensor:
    positions = SinusoidalPositions2D(8, coordinates, scale=SINUSOID_SCALE)
    return positions(torch.zeros(1, len(coordinates), 8), torch.arange(len(coordinates)))[0]


def test_sinusoids_of_a_prefix_are_those_of_the_cells_it_lies_on() -> None:
    model = tiny(positions="sinusoidal_2d", **PREFIX)
    expected = sinusoids(torch.cat([CONDITION, IMAGE]))  # the prefix comes first
    assert torch.equal(inputs_of(model.blocks[0], model), expected)


def test_sinusoids_of_a_context_are_those_of_the_cells_it_lies_on() -> None:
    model = tiny(positions="sinusoidal_2d", **CONTEXT)
    nowhere = torch.full((1, 2), torch.nan)  # the prefix is a start token
    expected = sinusoids(torch.cat([nowhere, IMAGE]))
    assert torch.equal(inputs_of(model.blocks[0], model), expected)
    attention, seen = model.get_submodule("blocks.0.context_attention"), []
    compute = attention.keys_and_values
    attention.keys_and_values = lambda source, rotate: seen.append(source) or compute(source)
    call(model)
    assert torch.equal(seen[0][0], sinusoids(CONDITION))


ROW, COLUMN = 1.0, 2.0  # of each key's pairs that turn by its row, and by its column


def scores(attention: nn.Module, model: GPT) -> Tensor:
    """Q Kᵀ, `(n_q n_k)`, where all queries are 1 and keys ROW and COLUMN before they are turned."""
    layer = attention.get_submodule("query_key_value")
    nn.init.zeros_(layer.weight)
    layer.bias.data = torch.tensor([1.0, 1.0, ROW, COLUMN, 0.0, 0.0]).repeat_interleave(4)
    seen: list[Tensor] = []

    def watched(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        seen.append((query @ key.mT)[0, 0])
        return torch.zeros_like(query)

    attention.attention = watched
    call(model)
    return seen[0]


def of_differences(queries: Tensor, keys: Tensor) -> Tensor:
    """What the scores are: pairs of 1 and 1 turned apart by α have the product 2 cos α.

    Of the two pairs of a half, the second turns by 1/100 of the first.
    """
    rows, columns = (queries[:, None] - keys[None]).unbind(dim=-1)  # (n_q n_k)
    rows, columns = ((2 * (d.cos() + (d / 100).cos())) for d in (rows, columns))
    return ROW * rows + COLUMN * columns


def test_a_query_scores_the_prefix_by_rows_and_columns_between_them() -> None:
    model = tiny(positions="rotary_2d", **PREFIX)
    cells = torch.cat([CONDITION, IMAGE])  # the prefix comes first
    found = scores(model.get_submodule("blocks.0.attention"), model)
    torch.testing.assert_close(found, of_differences(cells, cells))


def test_a_query_scores_the_context_by_rows_and_columns_between_them() -> None:
    model = tiny(positions="rotary_2d", **CONTEXT)
    attention = model.get_submodule("blocks.0.context_attention")
    found = scores(attention, model)[1:]  # without the start token, which lies nowhere
    torch.testing.assert_close(found, of_differences(IMAGE, CONDITION))
    best = found.topk(2).indices.sort().values  # two cells of the context lie on one of the image
    assert best.tolist() == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]
