import pytest
import torch
from padding import padding_mask
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


def random_mask(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5


MASKS = {
    "none": None,
    "causal": causal_mask(N),
    "prefix": prefix_causal_mask(N, 3),
    "padding": padding_mask(torch.tensor([N, 4]), N),
    "random": random_mask(B, HEADS, N, N),
    "for each head": random_mask(HEADS, 1, N),
    "for each key": random_mask(N),
    "for each query": random_mask(N, 1),
    "some rows empty": random_mask(B, HEADS, N, N) & (torch.arange(N) % 3 > 0)[:, None],
    "all empty": padding_mask(torch.tensor([0, 5]), N),
    "nothing at all": torch.tensor(False),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_weights_are_a_distribution_over_the_keys_a_query_may_attend_to(
    name: str, causal: bool
) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, B, HEADS, N, 4, dtype=torch.float64)
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
    """Output and gradients of the fused path are those of the equation; all are finite."""
    gradient = torch.randn(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    results = []
    for function in (attention, fused_attention):
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        output = function(*leaves, mask, causal=causal)
        output.backward(gradient)
        results.append([output.detach(), *(x.grad for x in leaves)])
    for expected, actual in zip(*results, strict=True):
        assert expected is not None and expected.isfinite().all()
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_fused_path_equals_the_equation(name: str, causal: bool) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(B, HEADS, N, d, dtype=torch.float64) for d in (4, 4, 5))
    assert_paths_are_equal(query, key, value, MASKS[name], causal=causal)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "causal"),
    [(1, 6, False), (3, 6, False), (6, 3, False), (1, 6, True), (3, 6, True), (1, 1, True)],
)
@pytest.mark.parametrize(("key_dim", "value_dim"), [(4, 4), (2, 5), (5, 2)])
def test_paths_are_equal_for_all_lengths_and_widths(
    num_queries: int, num_keys: int, causal: bool, key_dim: int, value_dim: int, masked: bool
) -> None:
    torch.manual_seed(0)
    shapes = (num_queries, key_dim), (num_keys, key_dim), (num_keys, value_dim)
    query, key, value = (torch.randn(B, HEADS, *shape, dtype=torch.float64) for shape in shapes)
    mask = random_mask(B, 1, num_queries, num_keys) if masked else None
    assert_paths_are_equal(query, key, value, mask, causal=causal)


@PATHS
def test_nothing_leaks_through_a_mask(function) -> None:
    """A change of a key and its value reaches those queries alone that may attend to it."""
    query, key, value = torch.randn(3, 1, 1, N, 4, dtype=torch.float64)
    mask = prefix_causal_mask(N, 3)
    before = function(query, key, value, mask)
    for j in range(N):
        moved = torch.nn.functional.one_hot(torch.tensor(j), N)[:, None]  # (n 1)
        changed = (function(query, key + moved, value + moved, mask) != before).any(-1)[0, 0]
        assert torch.equal(changed, mask[:, j])


@PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_that_may_attend_to_nothing_gets_zeros(function, dtype: torch.dtype) -> None:
    query, key, value = (x.to(dtype).requires_grad_() for x in torch.randn(3, 1, 1, N, 4).unbind())
    mask = causal_mask(N) & ~torch.eye(N, dtype=torch.bool)  # row 0 is empty
    output = function(query, key, value, mask)
    assert output.dtype == dtype and output.isfinite().all()
    assert (output[:, :, 0] == 0).all() and (output[:, :, 1:] != 0).all()
    assert (attention_weights(query, key, mask)[:, :, 0] == 0).all()
    for gradient in torch.autograd.grad(output[:, :, 0].sum(), (query, key, value)):
        assert (gradient == 0).all()


@PATHS
def test_scores_too_large_for_an_exponential_are_no_trouble(function) -> None:
    query = torch.tensor([[300.0, 0.0], [0.0, 300.0]])
    value = torch.tensor([[1.0], [2.0]])
    torch.testing.assert_close(function(query, query, value), value)  # each sees itself alone


@PATHS
def test_row_form_equals_column_form(function) -> None:
    """With tokens as columns attention is V softmax(KᵀQ / √d_k), each column a distribution."""
    query, key, value = (torch.randn(*s, dtype=torch.float64) for s in ((3, 4), (N, 4), (N, 5)))
    query_columns, key_columns, value_columns = query.T, key.T, value.T  # (d n)
    weights = (key_columns.T @ query_columns / 2).softmax(dim=0)  # (n_k n_q)
    columns = value_columns @ weights  # (d_v n_q)
    torch.testing.assert_close(function(query, key, value).T, columns)
    torch.testing.assert_close(attention_weights(query, key).T, weights)


@PATHS
@pytest.mark.parametrize("num_queries", [1, 2, N])
def test_causal_queries_are_the_last_of_the_keys(function, num_queries: int) -> None:
    query, key, value = torch.randn(3, B, HEADS, N, 4, dtype=torch.float64)
    for mask in (None, random_mask(N, N)):
        whole = function(query, key, value, mask, causal=True)
        rows = mask if mask is None else mask[-num_queries:]
        last = function(query[:, :, -num_queries:], key, value, rows, causal=True)
        torch.testing.assert_close(last, whole[:, :, -num_queries:])


@PATHS
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
    with pytest.raises(ValueError, match="3 causal queries"):
        causal_mask(3, 2)
