from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from taming.attention import CacheView, KeyValueCache, MultiHeadAttention, prefix_causal_mask
from taming.positions import RotaryPositions2D, grid_coordinates


@pytest.fixture(params=[False, True], ids=["equation", "fused"])
def module(request: pytest.FixtureRequest) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(8, 2, qk_norm=True, fused=request.param).double()


@pytest.fixture
def x(module: MultiHeadAttention) -> Tensor:
    return torch.randn(2, 6, 8, dtype=torch.float64)


def call(module: MultiHeadAttention, x: Tensor, view: CacheView, **settings: Any) -> Tensor:
    settings = {"mask": view.mask, "causal": view.mask is None, **settings}
    update = partial(view.update, 0)
    with torch.no_grad():
        return module(x[:, view.positions], update_cache=update, **settings)


@pytest.mark.parametrize("num_visible", [None, 6, 8])  # as many as written, just enough, or more
@pytest.mark.parametrize("steps", [[1] * 6, [2, 1, 1, 2], [6]])
def test_cached_equals_uncached(
    module: MultiHeadAttention, x: Tensor, steps: list[int], num_visible: int | None
) -> None:
    rotary = RotaryPositions2D(
        4, grid_coordinates((2, 3)).flatten(0, 1)
    )  # cached keys keep their rotation
    cache = KeyValueCache(num_layers=1, num_sequences=2, max_length=8)

    def rotations(positions: Tensor) -> dict[str, Any]:
        return dict.fromkeys(("rotate_queries", "rotate_keys"), rotary.rotation(positions))

    outputs = []
    for positions in torch.arange(6).split(steps):
        visible = int(positions[-1]) + 1 if num_visible is None else torch.arange(num_visible)
        view = CacheView(cache, positions, visible)
        outputs.append(call(module, x, view, **rotations(positions)))
    expected = module(x, causal=True, **rotations(torch.arange(6)))
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)


def test_cached_prefix_sees_itself_in_both_directions(
    module: MultiHeadAttention, x: Tensor
) -> None:
    cache = KeyValueCache(num_layers=1, num_sequences=2, max_length=6)
    prefill, *steps = torch.arange(6).split([4, 1, 1])
    view = CacheView(cache, prefill, 4)
    outputs = [call(module, x, view, mask=prefix_causal_mask(4, 3), causal=False)]
    outputs += [call(module, x, CacheView(cache, p, int(p) + 1)) for p in steps]
    expected = module(x, mask=prefix_causal_mask(6, 3))
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)


def test_visible_positions_end_at_the_last_token() -> None:
    cache = KeyValueCache(num_layers=1, num_sequences=2, max_length=6)
    with pytest.raises(AssertionError):
        CacheView(cache, torch.arange(3), 4)


def test_rows_are_decoded_separately(module: MultiHeadAttention, x: Tensor) -> None:
    cache = KeyValueCache(num_layers=1, num_sequences=2, max_length=6)
    prefill, last = torch.arange(6).split([5, 1])
    for row in (slice(1), slice(1, None)):
        call(module, x[row], CacheView(cache, prefill, 5, row.start, row.stop))
    output = call(module, x, CacheView(cache, last, 6))
    torch.testing.assert_close(output, module(x, causal=True)[:, 5:])


@pytest.fixture
def unset_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("unset_memory_is_nan")
def test_memory_stays_in_place_and_is_zero_where_nothing_is_written() -> None:
    cache = KeyValueCache(num_layers=2, num_sequences=1, max_length=6)
    part, context = torch.randn(1, 2, 2, 4), torch.randn(1, 2, 5, 4)
    for _ in range(2):  # batches
        first = CacheView(cache, torch.arange(2), 2)
        first_keys, first_values = first.update(1, part, part)
        assert torch.equal(first_keys, part) and torch.equal(first_values, part)
        last = CacheView(cache, torch.tensor([3]), torch.arange(4))
        keys, values = last.update(1, part[:, :, :1], part[:, :, 1:])
        assert keys.data_ptr() == first_keys.data_ptr() == cache.tokens[1][0].data_ptr()
        unwritten = torch.zeros(1, 2, 1, 4)
        assert torch.equal(keys, torch.cat([part, unwritten, part[:, :, :1]], dim=2))
        assert torch.equal(values, torch.cat([part, unwritten, part[:, :, 1:]], dim=2))
        assert last.mask.tolist() == [[True] * 4] and first.mask is None
        last.write_context(1, context, context + 1)
        context_keys, context_values = first.context(1)
        assert torch.equal(context_keys, context) and torch.equal(context_values, context + 1)
        assert context_keys.data_ptr() == cache.context[1][0].data_ptr()
    assert cache.tokens[0] is None
