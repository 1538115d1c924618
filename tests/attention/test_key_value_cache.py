from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from taming.attention import KeyValueCache, LayerCache, MultiHeadAttention, prefix_causal_mask
from taming.positions import RotaryPositions2D, grid_coordinates

FUSED = pytest.mark.parametrize("fused", [False, True])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@FUSED
@pytest.mark.parametrize("span", [None, 7, 9])  # as many as written, exactly enough, or more
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 1, 2], [7]])
def test_cached_equals_uncached(fused: bool, steps: list[int], span: int | None) -> None:
    module = MultiHeadAttention(8, 2, qk_norm=True, fused=fused).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    cache = KeyValueCache(num_layers=1, max_length=9, num_sequences=2)
    cache.shown = None if span is None else torch.arange(span)
    outputs = []
    with torch.no_grad():
        for positions in torch.arange(7).split(steps):
            mask, shown = cache.mask(positions), cache.advance(len(positions))
            update = partial(cache.layers[0].update, positions, shown)
            outputs.append(
                module(x[:, positions], mask=mask, causal=span is None, update_cache=update)
            )
    assert cache.length == (7 if span is None else 0)  # where there is room for all, none counted
    torch.testing.assert_close(torch.cat(outputs, dim=1), module(x, causal=True))


@FUSED
def test_cached_prefix_sees_itself_in_both_directions(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, fused=fused).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    cache = LayerCache(max_length=7, num_sequences=2)
    with torch.no_grad():
        first, *others = torch.arange(7).split([4, 1, 1, 1])
        mask, update = prefix_causal_mask(4, 3), partial(cache.update, first, 4)
        outputs = [module(x[:, first], mask=mask, update_cache=update)]
        for i in others:
            update = partial(cache.update, i, int(i) + 1)
            outputs.append(module(x[:, i], causal=True, update_cache=update))
    expected = module(x, mask=prefix_causal_mask(7, 3))
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)


@FUSED
def test_cached_keys_stay_turned_as_their_positions_were(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, fused=fused).double()
    rotary = RotaryPositions2D(4, grid_coordinates((2, 3)))

    def run(x: Tensor, at: Tensor, cache: LayerCache | None = None) -> Tensor:
        rotate = rotary.rotation(at)
        rotations = {"rotate_queries": rotate, "rotate_keys": rotate}
        update = None if cache is None else partial(cache.update, at, int(at[-1]) + 1)
        return module(x, causal=True, update_cache=update, **rotations)

    x, positions = torch.randn(2, 6, 8, dtype=torch.float64), torch.arange(6)
    cache = LayerCache(max_length=6, num_sequences=2)
    steps = [3, 1, 2]
    with torch.no_grad():
        parts = zip(x.split(steps, dim=1), positions.split(steps), strict=True)
        outputs = [run(part, at, cache) for part, at in parts]
    torch.testing.assert_close(torch.cat(outputs, dim=1), run(x, positions))


def test_cache_keeps_its_memory() -> None:
    cache = KeyValueCache(num_layers=2, max_length=3, num_sequences=1)
    part = torch.randn(1, 2, 2, 4)
    first, _ = cache.layers[0].update(torch.arange(2), cache.advance(2), part, part)
    last = torch.tensor([2])
    keys, values = cache.layers[0].update(last, cache.advance(1), part[:, :, :1], part[:, :, 1:])
    assert cache.length == 3 and keys.shape == values.shape == (1, 2, 3, 4)
    assert keys.data_ptr() == first.data_ptr()
    assert torch.equal(values[:, :, 2], part[:, :, 1])
    cache.clear()
    again, _ = cache.layers[0].update(torch.arange(2), cache.advance(2), part, part)
    assert again.data_ptr() == first.data_ptr() and again.shape[2] == cache.length == 2


@pytest.fixture
def unset_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("unset_memory_is_nan")
def test_what_the_cache_shows_has_one_length_wherever_it_is_written() -> None:
    assert torch.empty(3).isnan().all()
    cache = KeyValueCache(num_layers=1, max_length=6, num_sequences=1)
    part, layer = torch.randn(1, 2, 2, 4), cache.layers[0]
    layer.update(torch.arange(2), cache.advance(2), part, part)
    cache.shown = torch.arange(4)
    last = torch.tensor([3])
    keys, values = layer.update(last, cache.advance(1), part[:, :, :1], part[:, :, 1:])
    assert keys.shape == values.shape == (1, 2, 4, 4)
    assert torch.equal(keys[:, :, :2], part) and torch.equal(keys[:, :, 3], part[:, :, 0])
    assert torch.equal(values[:, :, 3], part[:, :, 1])
    assert (keys[:, :, 2] == 0).all()  # unwritten, and no NaN
    assert cache.length == 2
