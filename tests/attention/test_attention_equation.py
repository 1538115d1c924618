import pytest
import torch
import torch.nn.functional as F

from taming.attention import (
    attention,
    attention_weights,
    causal_mask,
    fused_attention,
    padding_mask,
    prefix_causal_mask,
)

B, HEADS, N = 2, 3, 7


def test_worked_example_in_double_precision() -> None:
    x = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64)  # W_Q = W_K = W_V = I
    weights = torch.tensor(
        [
            [0.401112, 0.197776, 0.401112],
            [0.197776, 0.401112, 0.401112],
            [0.248255, 0.248255, 0.503490],
        ],
        dtype=torch.float64,
    )
    output = torch.tensor(
        [[0.802224, 0.598888], [0.598888, 0.802224], [0.751745, 0.751745]], dtype=torch.float64
    )
    torch.testing.assert_close(attention_weights(x, x), weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(attention(x, x, x), output, atol=1e-6, rtol=0)
    torch.testing.assert_close(fused_attention(x, x, x), output, atol=1e-6, rtol=0)


def test_weights_are_a_distribution_over_the_keys_a_query_may_attend_to() -> None:
    query, key = torch.randn(B, HEADS, N, 4), torch.randn(B, HEADS, N, 4)
    weights = attention_weights(query, key, causal=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, HEADS, N))
    assert (weights.triu(1) == 0).all()
    assert torch.equal(weights[..., 0, 0], torch.ones(B, HEADS))


MASKS = {
    "none": None,
    "causal": causal_mask(N),
    "prefix": prefix_causal_mask(N, 3),
    "padding": padding_mask(torch.tensor([N, 4]), N),
    "random": torch.rand(B, HEADS, N, N, generator=torch.Generator().manual_seed(0)) < 0.5,
    "some rows empty": causal_mask(N).roll(2, dims=0) & ~torch.eye(N, dtype=torch.bool),
    "all empty": padding_mask(torch.tensor([0, 5]), N),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_fused_path_equals_the_equation(name: str, causal: bool) -> None:
    torch.manual_seed(0)
    mask = MASKS[name]
    inputs = [torch.randn(B, HEADS, N, d, dtype=torch.float64) for d in (4, 4, 5)]  # q, k, v
    gradient = torch.randn(B, HEADS, N, 5, dtype=torch.float64)
    results = []
    for function in (attention, fused_attention):
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = function(*leaves, mask, causal=causal)
        output.backward(gradient)
        results.append([output.detach(), *(x.grad for x in leaves)])
    for expected, actual in zip(*results, strict=True):
        assert expected is not None and expected.isfinite().all()
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("function", [attention, fused_attention])
def test_a_query_that_may_attend_to_nothing_gets_zeros(function) -> None:
    query, key, value = torch.randn(3, 1, 1, N, 4)
    mask = torch.ones(N, N, dtype=torch.bool)
    mask[2] = False
    output = function(query, key, value, mask)
    assert (output[:, :, 2] == 0).all()
    assert (output[:, :, [0, 1, 3]] != 0).all()


@pytest.mark.parametrize("function", [attention, fused_attention])
@pytest.mark.parametrize("num_queries", [1, 2, N])
def test_causal_queries_are_the_last_of_the_keys(function, num_queries: int) -> None:
    query, key, value = torch.randn(3, B, HEADS, N, 4, dtype=torch.float64)
    whole = function(query, key, value, causal=True)
    last = function(query[:, :, -num_queries:], key, value, causal=True)
    torch.testing.assert_close(last, whole[:, :, -num_queries:])


@pytest.mark.parametrize("function", [attention, fused_attention])
def test_source_of_another_length(function) -> None:
    query, key, value = torch.randn(B, 2, 4), torch.randn(B, 5, 4), torch.randn(B, 5, 3)
    expected = torch.softmax(query @ key.mT / 2, dim=-1) @ value
    torch.testing.assert_close(function(query, key, value), expected)


@pytest.mark.parametrize("function", [attention, fused_attention])
def test_dropout_keeps_the_expectation(function) -> None:
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 2000, 4), torch.zeros(1, 1, 50, 4)
    value = torch.ones(1, 1, 50, 4)
    output = function(query, key, value, None, 0.5)
    assert output.std() > 0.05  # 1 / sqrt(50) = 0.14 is expected
    assert abs(output.mean().item() - 1.0) < 0.02


def test_masks_are_what_they_say() -> None:
    assert causal_mask(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert prefix_causal_mask(4, 2).int().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]
    assert padding_mask(torch.tensor([1, 3]), 3).int().tolist() == [[[[1, 0, 0]]], [[[1, 1, 1]]]]
    with pytest.raises(ValueError, match="3 causal queries"):
        causal_mask(3, 2)


def test_equals_torch() -> None:
    query, key, value = torch.randn(3, B, HEADS, N, 4, dtype=torch.float64)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(attention(query, key, value, causal=True), expected)
