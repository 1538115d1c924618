import math

import pytest
import torch

from taming.errors import UserError
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0 and must be more than 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0 and must be at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0 and must be more than 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
    ],
)
def test_values_out_of_range(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        filter_logits(LOGITS, **arguments)
