"""The plan of the sliding window: order, places, and the paper's scheme."""

import itertools
from typing import Any

import pytest
import torch

from taming.generation.window import WindowRun, plan_windows
from taming.runtime.errors import UserError
from taming.transformer.orders import to_indices, to_tokens

GRIDS = [(1, 1), (1, 7), (4, 4), (4, 9), (5, 6), (7, 3), (8, 11)]
WINDOWS = [(1, 1), (1, 3), (2, 2), (3, 1), (3, 2), (4, 4), (3, 5), (4, 6)]
PLANS = [
    (grid, window, stride, (1, 1))
    for grid, window in itertools.product(GRIDS, WINDOWS)
    if grid[0] >= window[0] and grid[1] >= window[1]
    for stride in (None, *range(1, window[1] + 1))
]
STEPS: list[Any] = [
    ((8, 12), (4, 6), None, (2, 3)),
    ((8, 12), (4, 6), 6, (4, 6)),  # side by side
    ((10, 9), (6, 3), 3, (2, 3)),
    ((5, 8), (5, 4), 2, (1, 2)),
    ((9, 10), (3, 5), None, (3, 1)),
]


@pytest.mark.parametrize(("grid", "window", "stride", "step"), PLANS + STEPS)
def test_every_token_is_drawn_once_in_order_after_all_earlier_ones_in_its_window(
    grid: Any, window: Any, stride: int | None, step: Any
) -> None:
    (height, width), num_tokens = window, grid[0] * grid[1]
    numbers = to_indices(torch.arange(num_tokens)[None], grid)[0]
    order: list[int] = []
    runs = plan_windows(grid, window, stride, step=step)
    for before, after in itertools.pairwise(runs):  # runs are as long as possible
        next_of_run = (before.row, before.column, before.start + before.count)
        assert next_of_run != (after.row, after.column, after.start)
    for run in runs:
        assert 0 <= run.row <= grid[0] - height and 0 <= run.column <= grid[1] - width
        assert run.row % step[0] == 0 and run.column % step[1] == 0
        assert run.start >= 0 and run.count >= 1 and run.start + run.count <= height * width
        view = numbers[None, run.row : run.row + height, run.column : run.column + width]
        in_window = to_tokens(view)[0].tolist()
        assert set(in_window[: run.start]) <= set(order)
        order += in_window[run.start : run.start + run.count]
    assert order == list(range(num_tokens))
    if step != (1, 1):  # away from the borders, at most half a step off the row without a step
        rows = [(run.row, run.start // width) for run in runs if 0 < run.row < grid[0] - height]
        last = dict(rows)  # of each window
        assert all(abs(row - height // 2) <= step[0] / 2 for row in last.values())


@pytest.mark.parametrize("window", [(1, 1), (4, 4), (16, 16), (12, 16)])
def test_a_grid_of_the_size_of_the_window_is_one_run(window: tuple[int, int]) -> None:
    assert plan_windows(window, window) == [WindowRun(0, 0, 0, window[0] * window[1])]


def test_a_row_by_hand() -> None:
    # columns 0 to 9 and a window of 4, middle column 2: with stride 1 it moves with every token
    assert plan_windows((1, 10), (1, 4), 1) == [
        WindowRun(0, 0, 0, 3),
        *(WindowRun(0, column, 2, 1) for column in range(1, 6)),
        WindowRun(0, 6, 2, 2),
    ]
    # with stride 2 it starts at even columns: for tokens 3 and 4 (ideally 1 and 2) at 2
    columns = [(0, 0, 3), (2, 1, 2), (4, 1, 2), (6, 1, 3)]
    expected = [WindowRun(0, column, start, count) for column, start, count in columns]
    assert plan_windows((1, 10), (1, 4), 2) == expected
    # the last window ends with the grid, even at a column that is not a multiple
    assert plan_windows((1, 9), (1, 4), 2)[-1] == WindowRun(0, 5, 2, 2)
    assert plan_windows((1, 8), (1, 4), 4) == [WindowRun(0, 0, 0, 4), WindowRun(0, 4, 0, 4)]
    # rows share a run if the grid is as wide as the window: rows 0 to 2, row 3, rows 4 and 5
    rows = [(0, 0, 9), (1, 6, 3), (2, 6, 6)]
    assert plan_windows((6, 3), (4, 3)) == [WindowRun(r, 0, start, n) for r, start, n in rows]


def middle_of(place: int, length: int, window: int) -> int:
    """The place of a token in its window, by the three cases of the 2021 scheme."""
    half = window // 2
    if place <= half:
        return place
    if length - place < window - half:
        return window - (length - place)
    return half


@pytest.mark.parametrize("grid", [(16, 16), (16, 30), (33, 17), (24, 40)])
def test_stride_one_is_the_scheme_of_the_paper(grid: tuple[int, int]) -> None:
    runs = plan_windows(grid, (16, 16), 1)
    places = [divmod(run.start + offset, 16) for run in runs for offset in range(run.count)]
    assert places == [
        (middle_of(i, grid[0], 16), middle_of(j, grid[1], 16))
        for i, j in itertools.product(range(grid[0]), range(grid[1]))
    ]


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 8, 16])
def test_away_from_the_borders_tokens_are_near_the_middle(stride: int) -> None:
    runs = plan_windows((20, 64), (16, 16), stride)
    places = [(run.column, run.start + offset) for run in runs for offset in range(run.count)]
    for number, (first_column, place) in enumerate(places):
        if 16 <= number % 64 < 48:
            assert first_column % stride == 0
            assert abs(place % 16 - 8) <= stride / 2


def test_the_default_stride_is_a_quarter_of_the_window() -> None:
    assert plan_windows((16, 64), (16, 16)) == plan_windows((16, 64), (16, 16), 4)
    assert plan_windows((3, 9), (3, 3)) == plan_windows((3, 9), (3, 3), 1)
    # prefills for a grid of 32 × 32, of 1024 tokens
    assert len(plan_windows((32, 32), (16, 16), 1)) == 32 * 17
    assert len(plan_windows((32, 32), (16, 16))) == 32 * 5


@pytest.mark.parametrize("num_given", [0, 1, 5, 22, 23, 44, 87, 88])
def test_given_tokens_are_left_out_and_change_no_window(num_given: int) -> None:
    def tokens(runs: list[WindowRun]) -> list[tuple[int, int, int]]:
        return [(r.row, r.column, r.start + offset) for r in runs for offset in range(r.count)]

    rest = plan_windows((8, 11), (4, 4), 2, num_given=num_given)
    assert tokens(rest) == tokens(plan_windows((8, 11), (4, 4), 2))[num_given:]


@pytest.mark.parametrize(
    ("grid", "settings", "message"),
    [
        *(((h, w), {}, f"{h} × {w} codes is smaller") for h, w in ((15, 32), (32, 15), (1, 1))),
        *(((32, 32), {"stride": s}, f"stride is {s}, but must be 1 to 16") for s in (0, -1, 17)),
        ((17, 32), {"step": (2, 4)}, "multiple of 2 in height"),
        ((32, 32), {"stride": 3, "step": (2, 2)}, "stride is 3.* multiple of 2"),
    ],
)
def test_grids_and_strides_out_of_range(grid: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_windows(grid, (16, 16), **settings)
