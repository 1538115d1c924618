from typing import Any

import pytest
import torch
import torch.nn.functional as F
from largest_error import check
from torch import Tensor

from taming.attention import (
    MultiHeadAttention,
    attention,
    attention_weights,
    causal_mask,
    prefix_causal_mask,
)
from taming.runtime.errors import UserError

FUSED = pytest.mark.parametrize("fused", [False, True])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def weights_of(module: MultiHeadAttention, x: Tensor, *source: Tensor, **settings: Any) -> Tensor:
    """The weights `(b heads n_q n_k)` of the queries and keys that the module computes."""
    weights = torch.empty(0)

    def record(query: Tensor, key: Tensor, value: Tensor, mask: Any, *_: Any, causal: bool) -> Any:
        nonlocal weights
        weights = attention_weights(query, key, mask, causal=causal)
        return weights @ value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attention", record)
        module(x, *source, **settings)
    return weights


def projections(module: MultiHeadAttention, x: Tensor, source: Tensor | None = None) -> Any:
    """X W_Q, S W_K and S W_V of all heads, `(b n heads·d)`."""
    if module.query_key_value is not None:
        return module.query_key_value(x).split(module.widths, dim=-1)
    return module.query(x), *module.key_value(source).split(module.widths[1:], dim=-1)


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
    module = MultiHeadAttention(8, 4, source_dim=5, key_dim=12, value_dim=8).double()
    x, source = (torch.randn(2, *s, dtype=torch.float64) for s in ((5, 8), (6, 5)))
    heads = zip(*(p.chunk(4, dim=-1) for p in projections(module, x, source)), strict=True)
    maps = module.output.weight.chunk(4, dim=1)
    terms = [attention(*head) @ map_.T for head, map_ in zip(heads, maps, strict=True)]
    torch.testing.assert_close(module(x, source), sum(terms) + module.output.bias)


@pytest.mark.parametrize("bias", [False, True])
def test_biases_are_optional(bias: bool) -> None:
    module = MultiHeadAttention(8, 2, source_dim=5, key_dim=6, value_dim=4, bias=bias)
    expected_shapes = {"query": (6, 8), "key_value": (10, 5), "output": (8, 4)}
    for name, shape in expected_shapes.items():
        linear = getattr(module, name)
        assert linear.weight.shape == shape and (linear.bias is not None) is bias
    # From a source of zeros, only the bias of the values arrives, through the output map.
    output = module(torch.randn(1, 3, 8), torch.zeros(1, 4, 5))
    expected = module.output(module.key_value.bias[6:]) if bias else torch.zeros(8)
    torch.testing.assert_close(output, expected.expand(1, 3, 8))


MASKS = {
    "none": None,
    "causal": causal_mask(6),
    "prefix": prefix_causal_mask(6, 2),
    "padding": (torch.arange(6) < torch.tensor([[6], [2]]))[:, None, None, :],
    "random, row 3 empty": (torch.arange(36).view(6, 6) % 5 < 2) & (torch.arange(6) != 3)[:, None],
}


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_outputs_and_gradients_of_both_paths_are_equal(name: str, qk_norm: bool) -> None:
    slow = MultiHeadAttention(8, 2, key_dim=4, qk_norm=qk_norm, fused=False).double()
    fast = MultiHeadAttention(8, 2, key_dim=4, qk_norm=qk_norm).double()
    fast.load_state_dict(slow.state_dict())
    x, upstream = torch.randn(2, 2, 6, 8, dtype=torch.float64)
    results = []
    for module in (slow, fast):
        output = module(x, mask=MASKS[name])
        results.append([output, *torch.autograd.grad(output, list(module.parameters()), upstream)])
    for expected, actual in zip(*results, strict=True):
        assert expected.isfinite().all()
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", MASKS)
def test_the_output_is_made_of_the_weights(name: str) -> None:
    module = MultiHeadAttention(8, 2, qk_norm=True).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    weights = weights_of(module, x, mask=MASKS[name])  # (b heads n n)
    sums = weights.sum(-1)
    assert weights.shape == (2, 2, 6, 6)
    torch.testing.assert_close(sums, (sums > 0).double())  # a row sums to 1 or is empty
    heads = weights @ projections(module, x)[2].unflatten(-1, (2, 4)).transpose(1, 2)
    output = module.output(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x, mask=MASKS[name]), output)


def test_normalised_queries_and_keys_written_out() -> None:
    module = MultiHeadAttention(8, 2, qk_norm=True).double()
    torch.nn.init.uniform_(module.query_norm.weight, 0.5, 2.0)
    torch.nn.init.uniform_(module.key_norm.weight, 0.5, 2.0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)

    def normalise(vectors: Tensor, scale: Tensor) -> Tensor:
        return scale * vectors / (vectors.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    heads = [
        attention(
            normalise(query, module.query_norm.weight),
            normalise(key, module.key_norm.weight),
            value,
        )
        for query, key, value in zip(
            *(p.chunk(2, dim=-1) for p in projections(module, x)), strict=True
        )
    ]
    torch.testing.assert_close(module(x), module.output(torch.cat(heads, dim=-1)))


@FUSED
def test_rotations_apply_to_queries_and_keys_of_each_head(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, qk_norm=True, fused=fused).double()
    x, source = torch.randn(2, 2, 5, 8, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    query_turn, key_turn = ({f"rotate_{name}": lambda t: t @ turn} for name in ("queries", "keys"))
    turned_back = {"rotate_keys": lambda k: k @ turn.T}
    plain = module(x, source)
    # The same rotation of both keeps every inner product. A rotation of one does not.
    torch.testing.assert_close(module(x, source, **query_turn, **key_turn), plain)
    one = module(x, source, **query_turn)
    assert (one - plain).abs().max() > 1e-3
    torch.testing.assert_close(module(x, source, **turned_back), one)
    weights = weights_of(module, x, source, **query_turn)
    torch.testing.assert_close(weights_of(module, x, source, **turned_back), weights)
    uniform = weights_of(module, x, source, rotate_queries=torch.zeros_like)
    torch.testing.assert_close(uniform, torch.full_like(uniform, 0.2))


@FUSED
def test_keys_and_values_can_be_computed_in_advance(fused: bool) -> None:
    module = MultiHeadAttention(8, 2, source_dim=5, value_dim=6, qk_norm=True, fused=fused)
    x, source = torch.randn(2, 3, 8), torch.randn(2, 7, 5)
    mask = (torch.arange(7) < torch.tensor([[7], [4]]))[:, None, None, :]
    keys, values = module.keys_and_values(source, rotate_keys=torch.neg)
    assert keys.shape == (2, 2, 7, 4) and values.shape == (2, 2, 7, 3)
    output = module.attend(x, keys, values, mask=mask, rotate_queries=torch.sin)
    expected = module(x, source, mask=mask, rotate_queries=torch.sin, rotate_keys=torch.neg)
    assert torch.equal(output, expected)


def test_x_as_an_explicit_source_gives_self_attention() -> None:
    module = MultiHeadAttention(8, 2, key_dim=6, value_dim=4, qk_norm=True).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(module(x, x.clone()), module(x))


def test_dropout_is_active_only_in_training() -> None:
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
