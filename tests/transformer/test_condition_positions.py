"""A condition's cells get the rows and columns of the image's cells under them.

The image has 2 × 3 codes and the condition 4 × 3: two of its rows cover one row of the image, so
their centres lie a quarter of a row above and below its centre.
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
    """One layer whose embeddings are zero, so that only the positions remain."""
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
    inputs: list[Tensor] = []
    module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    call(model)
    (x,) = inputs
    return x[0]


def sinusoids(coordinates: Tensor) -> Tensor:
    positions = SinusoidalPositions2D(8, coordinates, scale=SINUSOID_SCALE)
    return positions(torch.zeros(1, len(coordinates), 8), torch.arange(len(coordinates)))[0]


def test_sinusoids_of_a_prefix_follow_the_cells_under_it() -> None:
    model = tiny(positions="sinusoidal_2d", **PREFIX)
    expected = sinusoids(torch.cat([CONDITION, IMAGE]))  # the prefix comes first
    assert torch.equal(inputs_of(model.blocks[0], model), expected)


def test_sinusoids_of_a_context_follow_the_cells_under_it() -> None:
    model = tiny(positions="sinusoidal_2d", **CONTEXT)
    outside = torch.full((1, 2), torch.nan)  # the prefix is a start token
    expected = sinusoids(torch.cat([outside, IMAGE]))
    assert torch.equal(inputs_of(model.blocks[0], model), expected)
    attention, sources = model.get_submodule("blocks.0.context_attention"), []
    compute = attention.keys_and_values
    attention.keys_and_values = lambda source, rotate: sources.append(source) or compute(source)
    call(model)
    assert torch.equal(sources[0][0], sinusoids(CONDITION))


ROW, COLUMN = 1.0, 2.0  # each key's pairs that rotate by its row and by its column


def scores(attention: nn.Module, model: GPT) -> Tensor:
    """Q Kᵀ `(n_q n_k)` of queries that are 1 and keys that are ROW and COLUMN before rotation."""
    layer = attention.get_submodule("query_key_value")
    nn.init.zeros_(layer.weight)
    layer.bias.data = torch.tensor([1.0, 1.0, ROW, COLUMN, 0.0, 0.0]).repeat_interleave(4)
    products: list[Tensor] = []

    def record(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        products.append((query @ key.mT)[0, 0])
        return torch.zeros_like(query)

    attention.attention = record
    call(model)
    return products[0]


def expected_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Two pairs (1, 1) that are rotated apart by α have the product 2 cos α.

    The second of the two pairs of a half rotates by 1/100 of the first.
    """
    rows, columns = (queries[:, None] - keys[None]).unbind(dim=-1)  # (n_q n_k)
    rows, columns = ((2 * (d.cos() + (d / 100).cos())) for d in (rows, columns))
    return ROW * rows + COLUMN * columns


def test_a_query_scores_the_prefix_by_rows_and_columns_between_them() -> None:
    model = tiny(positions="rotary_2d", **PREFIX)
    cells = torch.cat([CONDITION, IMAGE])  # the prefix comes first
    actual = scores(model.get_submodule("blocks.0.attention"), model)
    torch.testing.assert_close(actual, expected_scores(cells, cells))


def test_a_query_scores_the_context_by_rows_and_columns_between_them() -> None:
    model = tiny(positions="rotary_2d", **CONTEXT)
    attention = model.get_submodule("blocks.0.context_attention")
    actual = scores(attention, model)[1:]  # without the start token
    torch.testing.assert_close(actual, expected_scores(IMAGE, CONDITION))
    best = actual.topk(2).indices.sort().values  # two cells of the context lie on one of the image
    assert best.tolist() == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]
