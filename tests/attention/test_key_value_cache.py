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
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 1, 2], [7]])
def test_cached_equals_uncached(fused: bool, steps: list[int]) -> None:
    module = MultiHeadAttention(8, 2, fused=fused).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    cache = LayerCache(max_length=9)
    with torch.no_grad():
        outputs = [module(part, causal=True, cache=cache) for part in x.split(steps, dim=1)]
    assert cache.length == 7
    torch.testing.assert_close(torch.cat(outputs, dim=1), module(x, causal=True))


@FUSED
@pytest.mark.parametrize("span", [7, 9])
def test_writing_at_a_place_equals_uncached(fused: bool, span: int) -> None:
    module = MultiHeadAttention(8, 2, qk_norm=True, fused=fused).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    cache = LayerCache(max_length=9)
    cache.span = span
    with torch.no_grad():
        outputs = [module(x[:, :3], causal=True, cache=cache)]
        for i in range(3, 7):
            mask = torch.arange(span) <= i
            place = torch.tensor([i])
            outputs.append(module(x[:, i : i + 1], mask=mask, cache=cache, place=place))
    assert cache.length == 3  # written ones are not counted
    torch.testing.assert_close(torch.cat(outputs, dim=1), module(x, causal=True))


@FUSED
def test_cached_prefix_sees_itself_in_both_directions(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, fused=fused).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    cache = LayerCache(max_length=7)
    with torch.no_grad():
        outputs = [module(x[:, :4], mask=prefix_causal_mask(4, 3), cache=cache)]
        outputs += [module(x[:, i : i + 1], causal=True, cache=cache) for i in range(4, 7)]
    expected = module(x, mask=prefix_causal_mask(7, 3))
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)


@FUSED
def test_cached_keys_stay_turned_as_their_places_were(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, fused=fused).double()
    positions = RotaryPositions2D(4, grid_coordinates((2, 3)))

    def run(x: Tensor, places: Tensor, cache: LayerCache | None = None) -> Tensor:
        rotate = partial(positions.rotate, places=places)
        return module(x, causal=True, cache=cache, rotate_queries=rotate, rotate_keys=rotate)

    x, places = torch.randn(2, 6, 8, dtype=torch.float64), torch.arange(6)
    cache = LayerCache(max_length=6)
    steps = [3, 1, 2]
    with torch.no_grad():
        parts = zip(x.split(steps, dim=1), places.split(steps), strict=True)
        outputs = [run(part, where, cache) for part, where in parts]
    torch.testing.assert_close(torch.cat(outputs, dim=1), run(x, places))


def test_cache_keeps_its_memory_and_says_when_it_is_full() -> None:
    cache = KeyValueCache(num_layers=2, max_length=3)
    part = torch.randn(1, 2, 2, 4)
    first, _ = cache.layers[0].append(part, part)
    keys, values = cache.layers[0].append(part[:, :, :1], part[:, :, 1:])
    assert cache.length == 3 and keys.shape == values.shape == (1, 2, 3, 4)
    assert keys.data_ptr() == first.data_ptr()
    assert torch.equal(values[:, :, 2], part[:, :, 1])
    with pytest.raises(ValueError, match="room for 3 tokens, not for 5"):
        cache.layers[0].append(part, part)


@pytest.fixture
def unset_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("unset_memory_is_nan")
def test_what_the_cache_shows_has_one_length_wherever_it_is_written() -> None:
    assert torch.empty(3).isnan().all()
    cache = KeyValueCache(num_layers=2, max_length=6)
    part = torch.randn(1, 2, 2, 4)
    for layer in cache.layers:
        layer.append(part, part)
    cache.span = 4
    assert cache.span == 4 and [layer.span for layer in cache.layers] == [4, 4]
    keys, values = cache.layers[1].write(part[:, :, :1], part[:, :, 1:], torch.tensor([3]))
    assert keys.shape == values.shape == (1, 2, 4, 4)
    assert torch.equal(keys[:, :, :2], part) and torch.equal(keys[:, :, 3], part[:, :, 0])
    assert torch.equal(values[:, :, 3], part[:, :, 1])
    assert (keys[:, :, 2] == 0).all()  # unwritten, and no NaN
    assert cache.length == 2
