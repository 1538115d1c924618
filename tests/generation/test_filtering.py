import math

import pytest
import torch

from taming.generation import apply_temperature, filter_logits, keep_top_k, keep_top_p

LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()


def kept(logits: torch.Tensor) -> list[int]:
    return logits.isfinite().nonzero()[:, -1].tolist()


def test_temperature_divides_and_shifts_no_probability() -> None:
    for value in (0.5, 1.0, 3.0):
        torch.testing.assert_close(
            apply_temperature(LOGITS, value).softmax(-1), (LOGITS / value).softmax(-1)
        )
    assert apply_temperature(1e4 * LOGITS, 1e-30).softmax(-1).tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (99, range(4))]
)
def test_top_k_keeps_the_most_probable(k: int, expected: list[int]) -> None:
    result = keep_top_k(LOGITS, k)
    assert kept(result) == list(expected)
    assert torch.equal(result[0, list(expected)], LOGITS[0, list(expected)])


@pytest.mark.parametrize(
    ("p", "expected"),
    [(1e-9, [1]), (0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.95, range(4)), (1, range(4))],
)
def test_top_p_keeps_the_fewest_that_reach_p(p: float, expected: list[int]) -> None:
    result = keep_top_p(LOGITS, p)
    assert kept(result) == list(expected)
    assert torch.equal(result[0, list(expected)], LOGITS[0, list(expected)])


def test_ties_go_to_the_lower_token() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 1.0]])
    assert kept(keep_top_k(logits, 2)) == [1, 2]
    assert kept(keep_top_k(logits, 4)) == [0, 1, 2, 3]
    assert kept(keep_top_p(torch.zeros(1, 4), 0.5)) == [0, 1]


def test_top_p_of_one_keeps_tokens_that_rounding_would_lose() -> None:
    logits = torch.full((1, 1000), -30.0)
    logits[0, 0] = 0.0
    assert len(kept(keep_top_p(logits, 1.0))) == 1000


def test_all_together_and_each_alone() -> None:
    assert kept(filter_logits(LOGITS)) == [0, 1, 2, 3]
    assert kept(filter_logits(LOGITS, top_p=0.41)) == [1, 3]  # without any top-k
    assert kept(filter_logits(LOGITS, top_k=3)) == [1, 2, 3]
    # top-p sees what temperature and top-k have left: 0.4, 0.3 of 0.7 are 0.57, 0.43
    assert kept(filter_logits(LOGITS, top_k=2, top_p=0.5)) == [1]
    assert kept(filter_logits(LOGITS, top_k=2, top_p=0.6)) == [1, 3]
    # at temperature 0.5 the probabilities are 1, 16, 4, 9 of 30
    assert kept(filter_logits(LOGITS, temperature=0.5, top_p=0.8)) == [1, 3]
    assert kept(filter_logits(LOGITS, temperature=1.0, top_p=0.8)) == [1, 2, 3]


def test_rows_are_filtered_by_themselves() -> None:
    logits = torch.stack([LOGITS[0], LOGITS[0].flip(0)])
    assert keep_top_k(logits, 1).isfinite().tolist() == [
        [False, True, False, False],
        [False, False, True, False],
    ]


@pytest.mark.parametrize("temperature", [1e-50, 1e-39, 1e-30])  # float32 takes the first for 0
def test_the_smallest_temperatures_leave_the_most_probable_tokens(temperature: float) -> None:
    logits = torch.tensor([[0.0, 2.0, -torch.inf, 2.0]])
    probabilities = filter_logits(logits, temperature, top_k=3, top_p=0.99).softmax(-1)
    assert probabilities.tolist() == [[0.0, 0.5, 0.0, 0.5]]


@pytest.mark.parametrize("temperature", [1e30, 1e39, math.inf])
def test_the_largest_temperatures_make_all_tokens_equal(temperature: float) -> None:
    logits = torch.tensor([[0.0, 2.0, -torch.inf, -30.0]])
    third = pytest.approx(1 / 3)
    assert apply_temperature(logits, temperature).softmax(-1)[0].tolist() == [
        third,
        third,
        0.0,  # what is ruled out stays ruled out
        third,
    ]


@pytest.mark.parametrize("p", [1e-50, 1e-9])  # float32 takes the first for 0, float16 both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_top_p_always_keeps_the_most_probable(p: float, dtype: torch.dtype) -> None:
    assert kept(keep_top_p(LOGITS.to(dtype), p)) == [1]
    assert kept(keep_top_p(torch.zeros(1, 1, dtype=dtype), p)) == [0]  # a vocabulary of one


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_filtered_as_its_float32_values(dtype: torch.dtype) -> None:
    # far from 0 the difference to the greatest would be rounded to 8 or 11 bits, and a sum of
    # 1000 probabilities would stop where one more is below half the last bit
    logits = (100 + 10 * torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))).to(dtype)
    for top_k, top_p in ((None, None), (None, 0.999), (500, None), (500, 0.9)):
        result = filter_logits(logits, 1.3, top_k, top_p)
        assert result.dtype == torch.float32
        assert torch.equal(result, filter_logits(logits.float(), 1.3, top_k, top_p))
    assert torch.equal(
        keep_top_p(logits, 0.999).isfinite(), keep_top_p(logits.float(), 0.999).isfinite()
    )


def in_order(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


@pytest.mark.parametrize("seed", range(5))
def test_properties_on_rows_with_ties_and_ruled_out_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, (40, 12), generator=generator).float()  # many ties
    logits[torch.rand(40, 12, generator=generator) < 0.3] = -torch.inf
    logits[:, 5] = 1.0  # no row is ruled out as a whole
    for temperature, top_k, top_p in ((1.0, 4, 1.0), (0.7, 12, 0.8), (2.0, 5, 0.6), (1.0, 1, 0.01)):
        filtered = filter_logits(logits, temperature, top_k, top_p)
        assert not filtered.isnan().any()
        for before, after in zip(logits.tolist(), filtered.tolist(), strict=True):
            weights = [math.exp(value / temperature) for value in before]
            candidates = [token for token in in_order(before)[:top_k] if weights[token] > 0]
            total = sum(weights[token] for token in candidates)
            expected, reached = [], 0.0
            for token in candidates:
                if top_p == 1.0 or reached < top_p - 1e-6:
                    expected.append(token)
                reached += weights[token] / total
            survivors = [token for token, value in enumerate(after) if value > -math.inf]
            assert survivors == sorted(expected)
            # and their odds are those before the filter
            for token in survivors:
                difference = (before[token] - before[survivors[0]]) / temperature
                assert after[token] - after[survivors[0]] == pytest.approx(difference, abs=1e-5)
