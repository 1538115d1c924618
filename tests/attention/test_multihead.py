import pytest
import torch
import torch.nn.functional as F

from taming.attention import (
    KeyValueCache,
    LayerCache,
    MultiHeadAttention,
    attention,
    causal_mask,
    padding_mask,
)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_torch_multi_head_attention(fused: bool, causal: bool) -> None:
    module = MultiHeadAttention(8, 2, fused=fused).double()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    projections = (module.query, module.key, module.value)
    expected, expected_weights = F.multi_head_attention_forward(
        *[x.transpose(0, 1)] * 3,
        embed_dim_to_check=8,
        num_heads=2,
        in_proj_weight=torch.cat([p.weight for p in projections]),
        in_proj_bias=torch.cat([p.bias for p in projections]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=module.output.weight,
        out_proj_bias=module.output.bias,
        attn_mask=~causal_mask(6) if causal else None,
        average_attn_weights=False,
    )
    torch.testing.assert_close(module(x, causal=causal), expected.transpose(0, 1))
    torch.testing.assert_close(module.weights(x, causal=causal), expected_weights)


def test_concatenation_and_output_map_are_a_sum_over_heads() -> None:
    module = MultiHeadAttention(8, 4, bias=False).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    total = torch.zeros(2, 5, 8, dtype=torch.float64)
    for head in range(4):
        rows = slice(2 * head, 2 * head + 2)
        query, key, value = (
            x @ map_.weight[rows].T for map_ in (module.query, module.key, module.value)
        )
        total += attention(query, key, value) @ module.output.weight[:, rows].T
    torch.testing.assert_close(module(x), total)


@pytest.mark.parametrize("fused", [False, True])
def test_cross_attention_with_widths_of_its_own(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, source_dim=5, key_dim=6, value_dim=4, fused=fused)
    x, source = torch.randn(2, 3, 8), torch.randn(2, 7, 5)
    mask = padding_mask(torch.tensor([7, 4]), 7)
    output = module(x, source, mask=mask)
    assert output.shape == (2, 3, 8)
    assert module.weights(x, source).shape == (2, 2, 3, 7)
    changed = source.clone()
    changed[1, 4:] += 1.0  # padding
    torch.testing.assert_close(module(x, changed, mask=mask), output)
    changed[1, 3] += 1.0
    assert not torch.allclose(module(x, changed, mask=mask)[1], output[1])


def test_single_head_over_pixels_does_not_care_about_their_order() -> None:
    module = MultiHeadAttention(16, 1)
    x = torch.randn(2, 12, 16)
    order = torch.randperm(12)
    torch.testing.assert_close(module(x[:, order]), module(x)[:, order])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 1, 2], [7]])
def test_cached_equals_uncached(fused: bool, steps: list[int]) -> None:
    module = MultiHeadAttention(8, 2, fused=fused).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    cache = LayerCache(max_length=9)
    with torch.no_grad():
        outputs = [module(part, causal=True, cache=cache) for part in x.split(steps, dim=1)]
    assert cache.length == 7
    torch.testing.assert_close(torch.cat(outputs, dim=1), module(x, causal=True))


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


def test_dropout_is_of_training_only() -> None:
    module = MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(1, 6, 8)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(ValueError, match="width of 8 cannot be split into 3"):
        MultiHeadAttention(8, 3)
