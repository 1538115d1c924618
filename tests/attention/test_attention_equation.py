from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from taming.attention import (
    attention,
    attention_weights,
    causal_mask,
    fused_attention,
    prefix_causal_mask,
)

B, HEADS, N = 2, 3, 7
PATHS = pytest.mark.parametrize("function", [attention, fused_attention])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def random_mask(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5


def padding_mask(*lengths: int) -> Tensor:
    """Hides the keys after the first `lengths[b]`, `(b 1 1 n)`."""
    return (torch.arange(N) < torch.tensor(lengths)[:, None])[:, None, None, :]


MASKS = {
    "none": None,
    "causal": causal_mask(N),
    "prefix": prefix_causal_mask(N, 3),
    "padding": padding_mask(N, 4),
    "random": random_mask(B, HEADS, N, N),
    "per head": random_mask(HEADS, 1, N),
    "per key": random_mask(N),
    "per query": random_mask(N, 1),
    "some rows empty": random_mask(B, HEADS, N, N) & (torch.arange(N) % 3 > 0)[:, None],
    "one sequence empty": padding_mask(0, 5),
    "nothing": torch.tensor(False),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_weights_are_a_distribution_over_visible_keys(name: str, causal: bool) -> None:
    query, key, value = random(3, B, HEADS, N, 4)
    mask = MASKS[name]
    allowed = torch.ones(B, HEADS, N, N, dtype=torch.bool)
    if mask is not None:
        allowed &= mask
    if causal:
        allowed &= causal_mask(N)
    weights = attention_weights(query, key, mask, causal=causal)
    assert torch.equal(weights > 0, allowed)
    torch.testing.assert_close(weights.sum(-1), allowed.any(-1).double())
    output = fused_attention(query, key, value, mask, causal=causal)
    torch.testing.assert_close(weights @ value, output)


def assert_paths_are_equal(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool
) -> None:
    """Both paths give the same output and gradients, all finite."""
    upstream = random(*query.shape[:-1], value.shape[-1])
    results = []
    for function in (attention, fused_attention):
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        output = function(*leaves, mask, causal=causal)
        results.append([output, *torch.autograd.grad(output, leaves, upstream)])
    for expected, actual in zip(*results, strict=True):
        assert expected.isfinite().all()
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_fused_path_equals_the_equation_under_every_mask(name: str, causal: bool) -> None:
    query, key, value = (random(B, HEADS, N, d) for d in (4, 4, 5))
    assert_paths_are_equal(query, key, value, MASKS[name], causal=causal)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "causal"),
    [(1, 6, False), (3, 6, False), (6, 3, False), (1, 6, True), (3, 6, True), (1, 1, True)],
)
@pytest.mark.parametrize(("key_dim", "value_dim"), [(4, 4), (2, 5), (5, 2)])
def test_fused_path_equals_the_equation_for_all_lengths_and_widths(
    num_queries: int, num_keys: int, causal: bool, key_dim: int, value_dim: int, masked: bool
) -> None:
    shapes = (num_queries, key_dim), (num_keys, key_dim), (num_keys, value_dim)
    query, key, value = (random(B, HEADS, *shape) for shape in shapes)
    mask = random_mask(B, 1, num_queries, num_keys) if masked else None
    assert_paths_are_equal(query, key, value, mask, causal=causal)


@PATHS
def test_nothing_leaks_through_a_mask(function: Callable) -> None:
    """A change of a key and its value reaches only the queries that may attend to it."""
    query, key, value = random(3, 1, 1, N, 4)
    mask = prefix_causal_mask(N, 3)
    before = function(query, key, value, mask)
    for j in range(N):
        change = torch.nn.functional.one_hot(torch.tensor(j), N)[:, None]  # (n 1)
        changed = (function(query, key + change, value + change, mask) != before).any(-1)[0, 0]
        assert torch.equal(changed, mask[:, j])


@PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_that_may_attend_to_nothing_gives_zeros(
    function: Callable, dtype: torch.dtype
) -> None:
    query, key, value = (x.to(dtype).requires_grad_() for x in torch.randn(3, 1, 1, N, 4).unbind())
    mask = causal_mask(N) & ~torch.eye(N, dtype=torch.bool)  # row 0 is empty
    output = function(query, key, value, mask)
    assert output.dtype == dtype and output.isfinite().all()
    assert (output[:, :, 0] == 0).all() and (output[:, :, 1:] != 0).all()
    assert (attention_weights(query, key, mask)[:, :, 0] == 0).all()
    for gradient in torch.autograd.grad(output[:, :, 0].sum(), (query, key, value)):
        assert (gradient == 0).all()


@PATHS
def test_large_scores_do_not_overflow(function: Callable) -> None:
    query = torch.tensor([[300.0, 0.0], [0.0, 300.0]])
    value = torch.tensor([[1.0], [2.0]])
    torch.testing.assert_close(function(query, query, value), value)  # each sees only itself


@PATHS
def test_row_form_equals_column_form(function: Callable) -> None:
    """With tokens as columns attention is V softmax(KᵀQ / √d_k), each column a distribution."""
    query, key, value = random(3, 4), random(N, 4), random(N, 5)
    weights = (key @ query.T / 2).softmax(dim=0)  # (n_k n_q)
    torch.testing.assert_close(function(query, key, value).T, value.T @ weights)
    torch.testing.assert_close(attention_weights(query, key).T, weights)


@PATHS
@pytest.mark.parametrize("num_queries", [1, 2, N])
def test_causal_queries_are_the_last_of_the_keys(function: Callable, num_queries: int) -> None:
    query, key, value = random(3, B, HEADS, N, 4)
    for mask in (None, random_mask(N, N)):
        whole = function(query, key, value, mask, causal=True)
        rows = mask if mask is None else mask[-num_queries:]
        last = function(query[:, :, -num_queries:], key, value, rows, causal=True)
        torch.testing.assert_close(last, whole[:, :, -num_queries:])


@PATHS
def test_dropout_keeps_the_expectation(function: Callable) -> None:
    query, key = torch.zeros(1, 1, 2000, 4), torch.zeros(1, 1, 50, 4)
    output = function(query, key, torch.ones(1, 1, 50, 4), None, 0.5)
    assert output.std() > 0.05  # 1 / sqrt(50) = 0.14 is expected
    assert abs(output.mean().item() - 1.0) < 0.02


def test_masks_written_out() -> None:
    assert causal_mask(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    prefix = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert prefix_causal_mask(4, 2).int().tolist() == prefix
