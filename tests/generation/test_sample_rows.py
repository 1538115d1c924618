"""Rows as they are drawn: the tokens of one call, and none drawn twice."""

import pytest
import torch
from tiny_models import tiny_generator

from taming.conditioning import ClassLabel, Unconditional
from taming.generation import Guidance, SamplingOptions

LABELS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(seed=1),
        SamplingOptions(seed=1, guidance=Guidance(scale=3, interval=(0.3, 1)), top_p=0.9),
        SamplingOptions(seed=1, grid_size=(4, 5), stride=1),
    ],
)
def test_each_row_is_that_of_one_call(options: SamplingOptions) -> None:
    generator = tiny_generator(ClassLabel(2, dropout=0.1))
    whole = generator.sample_tokens(3, LABELS, options=options)
    height, width = options.grid_size or generator.grid_size
    rows = [rows.clone() for rows in generator.sample_rows(3, LABELS, options=options)]
    assert [part.shape[1] for part in rows] == [width * row for row in range(1, height + 1)]
    for part in rows:
        assert torch.equal(part, whole[:, : part.shape[1]])


def test_given_rows_come_first_and_are_kept() -> None:
    generator = tiny_generator(Unconditional(), grid_size=(3, 2))
    options = SamplingOptions(seed=0)
    given = torch.tensor([[1, 2, 3], [4, 5, 6]])  # one row and a half
    rows = [r.clone() for r in generator.sample_rows(2, given_tokens=given, options=options)]
    assert [part.shape[1] for part in rows] == [2, 4, 6]
    assert torch.equal(rows[0], given[:, :2])
    assert torch.equal(rows[-1], generator.sample_tokens(2, given_tokens=given, options=options))


def test_rows_that_nobody_asks_for_are_not_drawn() -> None:
    generator = tiny_generator(Unconditional())
    calls = []
    generator.transformer.head.register_forward_hook(lambda *_: calls.append(1))
    rows = generator.sample_rows(1, options=SamplingOptions(seed=0))
    next(rows)
    rows.close()
    assert len(calls) == 3  # the tokens of a row
