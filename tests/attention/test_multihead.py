from typing import Any

import pytest
import torch
import torch.nn.functional as F
from largest_error import check
from padding import padding_mask
from torch import Tensor, nn

from taming.attention import (
    MultiHeadAttention,
    attention,
    attention_weights,
    causal_mask,
    prefix_causal_mask,
)
from taming.runtime.errors import UserError

FUSED = pytest.mark.parametrize("fused", [False, True])


def weights_of(module: MultiHeadAttention, x: Tensor, *source: Tensor, **how: Any) -> Tensor:
    """The weights `(b heads n_q n_k)` of the queries and keys that the module computes."""
    weights = torch.empty(0)

    def watched(query: Tensor, key: Tensor, value: Tensor, mask: Any, *_: Any, causal: bool) -> Any:
        nonlocal weights
        weights = attention_weights(query, key, mask, causal=causal)
        return weights @ value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attention", watched)
        module(x, *source, **how)
    return weights


def separate(module: MultiHeadAttention) -> dict[str, nn.Linear]:
    """Returns W_Q, W_K and W_V as separate layers."""
    stacked = (
        {"key_value": ("key", "value"), "query": ("query",)}
        if module.query_key_value is None
        else {"query_key_value": ("query", "key", "value")}
    )
    widths = dict(zip(("query", "key", "value"), module.widths, strict=True))
    layers = {}
    for name, parts in stacked.items():
        layer = module.get_submodule(name)
        start = 0
        for part in parts:
            rows = slice(start, start := start + widths[part])
            layers[part] = nn.Linear(1, 1, bias=layer.bias is not None)
            layers[part].weight = nn.Parameter(layer.weight[rows].detach())
            if layer.bias is not None:
                layers[part].bias = nn.Parameter(layer.bias[rows].detach())
    return layers


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@FUSED
@pytest.mark.parametrize("causal", [False, True])
def test_equals_torch_multi_head_attention(fused: bool, causal: bool) -> None:
    module = MultiHeadAttention(8, 2, fused=fused).double()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    expected, expected_weights = F.multi_head_attention_forward(
        *[x.transpose(0, 1)] * 3,
        embed_dim_to_check=8,
        num_heads=2,
        in_proj_weight=module.query_key_value.weight,
        in_proj_bias=module.query_key_value.bias,
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=module.output.weight,
        out_proj_bias=module.output.bias,
        attn_mask=~causal_mask(6) if causal else None,
        average_attn_weights=False,
    )
    check("two heads", module(x, causal=causal), expected.transpose(0, 1), 1e-12)
    check("two heads, weights", weights_of(module, x, causal=causal), expected_weights, 1e-12)


def test_concatenation_and_output_map_are_a_sum_over_heads() -> None:
    num_heads, d_k, d_v = 4, 3, 2
    module = MultiHeadAttention(8, num_heads, source_dim=5, key_dim=12, value_dim=8).double()
    x, source = (torch.randn(2, *s, dtype=torch.float64) for s in ((5, 8), (6, 5)))
    total = module.output.bias.expand(2, 5, 8)
    layers = separate(module)
    query, key, value = layers["query"](x), layers["key"](source), layers["value"](source)
    for h in range(num_heads):
        of_key, of_value = slice(h * d_k, (h + 1) * d_k), slice(h * d_v, (h + 1) * d_v)
        head = attention(query[..., of_key], key[..., of_key], value[..., of_value])
        total = total + head @ module.output.weight[:, of_value].T
    torch.testing.assert_close(module(x, source), total)


@pytest.mark.parametrize("bias", [False, True])
def test_biases_are_optional(bias: bool) -> None:
    module = MultiHeadAttention(8, 2, source_dim=5, key_dim=6, value_dim=4, bias=bias)
    expected_shapes = {"query": (6, 8), "key_value": (10, 5), "output": (8, 4)}
    for name, shape in expected_shapes.items():
        linear = getattr(module, name)
        assert linear.weight.shape == shape and (linear.bias is not None) is bias
    # Of a source of zeros only the values' bias arrives, through the output map.
    output = module(torch.randn(1, 3, 8), torch.zeros(1, 4, 5))
    expected = module.output(module.key_value.bias[6:]) if bias else torch.zeros(8)
    torch.testing.assert_close(output, expected.expand(1, 3, 8))


MASKS = {
    "none": None,
    "causal": causal_mask(6),
    "prefix": prefix_causal_mask(6, 2),
    "padding": padding_mask(torch.tensor([6, 2]), 6),
    "random, row 3 empty": (torch.arange(36).view(6, 6) % 5 < 2) & (torch.arange(6) != 3)[:, None],
}


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_paths_are_equal_to_the_last_parameter(name: str, qk_norm: bool) -> None:
    slow = MultiHeadAttention(8, 2, key_dim=4, qk_norm=qk_norm, fused=False).double()
    fast = MultiHeadAttention(8, 2, key_dim=4, qk_norm=qk_norm).double()
    fast.load_state_dict(slow.state_dict())
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    upstream = torch.randn_like(x)
    outputs = [module(x, mask=MASKS[name]) for module in (slow, fast)]
    torch.testing.assert_close(outputs[1], outputs[0])
    gradients = [
        torch.autograd.grad(output, list(module.parameters()), upstream)
        for module, output in zip((slow, fast), outputs, strict=True)
    ]
    for expected, actual in zip(*gradients, strict=True):
        assert expected.isfinite().all()
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", MASKS)
def test_weights_are_those_the_output_is_made_of(name: str) -> None:
    module = MultiHeadAttention(8, 2, qk_norm=True).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    weights = weights_of(module, x, mask=MASKS[name])  # (b heads n n)
    allowed = weights.sum(-1)
    assert weights.shape == (2, 2, 6, 6)
    torch.testing.assert_close(allowed, (allowed > 0).double())  # a row sums to 1, or is empty
    heads = weights @ separate(module)["value"](x).unflatten(-1, (2, 4)).transpose(1, 2)
    output = module.output(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x, mask=MASKS[name]), output)


def test_normalised_queries_and_keys_written_out() -> None:
    module = MultiHeadAttention(8, 2, qk_norm=True).double()
    torch.nn.init.uniform_(module.query_norm.weight, 0.5, 2.0)
    torch.nn.init.uniform_(module.key_norm.weight, 0.5, 2.0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)

    def normalise(vectors: Tensor, scale: Tensor) -> Tensor:
        return scale * vectors / (vectors.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    query, key, value = (separate(module)[name](x) for name in ("query", "key", "value"))
    heads = [
        attention(
            normalise(query[..., head], module.query_norm.weight),
            normalise(key[..., head], module.key_norm.weight),
            value[..., head],
        )
        for head in (slice(0, 4), slice(4, 8))
    ]
    torch.testing.assert_close(module(x), module.output(torch.cat(heads, dim=-1)))


@FUSED
def test_rotations_turn_the_queries_and_keys_of_each_head(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, qk_norm=True, fused=fused).double()
    x, source = torch.randn(2, 2, 5, 8, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    plain = module(x, source)
    # Turning both by the same leaves every inner product; turning one of them does not.
    both = module(x, source, rotate_queries=lambda q: q @ turn, rotate_keys=lambda k: k @ turn)
    torch.testing.assert_close(both, plain)
    one = module(x, source, rotate_queries=lambda q: q @ turn)
    assert (one - plain).abs().max() > 1e-3
    torch.testing.assert_close(module(x, source, rotate_keys=lambda k: k @ turn.T), one)
    weights = weights_of(module, x, source, rotate_queries=lambda q: q @ turn)
    turned_back = weights_of(module, x, source, rotate_keys=lambda k: k @ turn.T)
    torch.testing.assert_close(turned_back, weights)
    # Queries of zeros take from all alike.
    same = weights_of(module, x, source, rotate_queries=torch.zeros_like)
    torch.testing.assert_close(same, torch.full_like(same, 0.2))


@FUSED
def test_keys_and_values_can_be_computed_in_advance(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, source_dim=5, value_dim=6, qk_norm=True, fused=fused)
    x, source = torch.randn(2, 3, 8), torch.randn(2, 7, 5)
    mask = padding_mask(torch.tensor([7, 4]), 7)
    keys, values = module.keys_and_values(source, rotate_keys=torch.neg)
    assert keys.shape == (2, 2, 7, 4) and values.shape == (2, 2, 7, 3)
    output = module.attend(x, keys, values, mask=mask, rotate_queries=torch.sin)
    expected = module(x, source, mask=mask, rotate_queries=torch.sin, rotate_keys=torch.neg)
    assert torch.equal(output, expected)


def test_x_as_its_own_source_is_projected_as_any_source() -> None:
    """One product of three maps, and two of one and two of them, are the same."""
    module = MultiHeadAttention(8, 2, key_dim=6, value_dim=4, qk_norm=True).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(module(x, x.clone()), module(x))


def test_dropout_is_of_training_only() -> None:
    module = MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(1, 6, 8)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_a_width_that_cannot_be_split_into_heads() -> None:
    with pytest.raises(UserError, match="8 cannot be split into 3"):
        MultiHeadAttention(8, 3)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_autocast_gives_queries_keys_and_values_one_dtype(qk_norm: bool) -> None:
    module = MultiHeadAttention(8, 2, qk_norm=qk_norm)
    x = torch.randn(1, 5, 8)
    exact = module(x, causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        keys, values = module.keys_and_values(x)
        rounded = module(x, causal=True)
    assert keys.dtype == values.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.02, rtol=0.02)
