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
    (grid, window, stride)
    for grid, window in itertools.product(GRIDS, WINDOWS)
    if grid[0] >= window[0] and grid[1] >= window[1]
    for stride in (None, *range(1, window[1] + 1))
]


@pytest.mark.parametrize(("grid", "window", "stride"), PLANS)
def test_every_token_is_drawn_once_in_order_and_after_all_before_it_in_its_window(
    grid: tuple[int, int],
    window: tuple[int, int],
    stride: int | None,
    step: tuple[int, int] = (1, 1),
) -> None:
    (height, width), num_tokens = window, grid[0] * grid[1]
    numbers = to_indices(torch.arange(num_tokens)[None], grid)[
        0
    ]  # as taming.transformer.orders has them
    drawn: list[int] = []
    runs = plan_windows(grid, window, stride, step=step)
    for before, after in itertools.pairwise(runs):  # as long as they can be
        next_of_run = (before.row, before.column, before.start + before.count)
        assert next_of_run != (after.row, after.column, after.start)
    for run in runs:
        assert 0 <= run.row <= grid[0] - height and 0 <= run.column <= grid[1] - width
        assert run.start >= 0 and run.count >= 1 and run.start + run.count <= height * width
        view = numbers[None, run.row : run.row + height, run.column : run.column + width]
        in_window = to_tokens(view)[0].tolist()
        assert set(in_window[: run.start]) <= set(drawn)
        drawn += in_window[run.start : run.start + run.count]
    assert drawn == list(range(num_tokens))


@pytest.mark.parametrize("window", [(1, 1), (4, 4), (16, 16), (12, 16)])
def test_a_grid_of_the_windows_size_is_one_run(window: tuple[int, int]) -> None:
    assert plan_windows(window, window) == [WindowRun(0, 0, 0, window[0] * window[1])]


def test_a_row_by_hand() -> None:
    # Columns 0 to 9 and a window of 4, its middle column 2. With stride 1 it moves with every
    # token, but at the borders.
    assert plan_windows((1, 10), (1, 4), 1) == [
        WindowRun(0, 0, 0, 3),
        *(WindowRun(0, column, 2, 1) for column in range(1, 6)),
        WindowRun(0, 6, 2, 2),
    ]
    # with 2 it takes the even columns: for columns 3 and 4 the first are 1 and 2, to 2 both
    assert plan_windows((1, 10), (1, 4), 2) == [
        WindowRun(0, 0, 0, 3),
        WindowRun(0, 2, 1, 2),
        WindowRun(0, 4, 1, 2),
        WindowRun(0, 6, 1, 3),
    ]
    # the last one ends with the grid even where it is no multiple
    assert plan_windows((1, 9), (1, 4), 2)[-1] == WindowRun(0, 5, 2, 2)
    # side by side
    assert plan_windows((1, 8), (1, 4), 4) == [WindowRun(0, 0, 0, 4), WindowRun(0, 4, 0, 4)]


def test_rows_share_a_run_where_the_grid_is_as_wide_as_the_window() -> None:
    # rows 0 to 2 see rows 0 to 3, row 3 sees 1 to 4, rows 4 and 5 see 2 to 5
    assert plan_windows((6, 3), (4, 3)) == [
        WindowRun(0, 0, 0, 9),
        WindowRun(1, 0, 6, 3),
        WindowRun(2, 0, 6, 6),
    ]


def middle_of(place: int, length: int, window: int) -> int:
    """The window's place that a token has in a grid, by the three cases of the 2021 scheme."""
    half = window // 2
    if place <= half:
        return place
    if length - place < window - half:
        return window - (length - place)
    return half


@pytest.mark.parametrize("grid", [(16, 16), (16, 30), (33, 17), (24, 40)])
def test_stride_one_is_the_scheme_of_the_paper(grid: tuple[int, int]) -> None:
    expected = [
        (middle_of(i, grid[0], 16), middle_of(j, grid[1], 16))
        for i, j in itertools.product(range(grid[0]), range(grid[1]))
    ]
    places = [
        divmod(run.start + offset, 16)
        for run in plan_windows(grid, (16, 16), 1)
        for offset in range(run.count)
    ]
    assert places == expected


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 8, 16])
def test_away_from_the_borders_tokens_are_near_the_middle(stride: int) -> None:
    grid, window = (20, 64), (16, 16)
    number = 0
    for run in plan_windows(grid, window, stride):
        for offset in range(run.count):
            column = number % grid[1]
            if 16 <= column < 48:
                assert run.column % stride == 0
                assert abs((run.start + offset) % 16 - 8) <= stride / 2
            number += 1


def test_the_default_stride_is_a_quarter_of_the_window() -> None:
    assert plan_windows((16, 64), (16, 16)) == plan_windows((16, 64), (16, 16), 4)
    assert plan_windows((3, 9), (3, 3)) == plan_windows((3, 9), (3, 3), 1)
    # what it is for: prefills for a grid of 32 × 32, of 1024 tokens
    assert len(plan_windows((32, 32), (16, 16), 1)) == 32 * 17
    assert len(plan_windows((32, 32), (16, 16))) == 32 * 5


@pytest.mark.parametrize("num_given", [0, 1, 5, 22, 23, 44, 87, 88])
def test_given_tokens_are_left_out_and_change_no_window(num_given: int) -> None:
    def tokens(runs: list[WindowRun]) -> list[tuple[int, int, int]]:
        return [(r.row, r.column, r.start + offset) for r in runs for offset in range(r.count)]

    whole = plan_windows((8, 11), (4, 4), 2)
    assert (
        tokens(plan_windows((8, 11), (4, 4), 2, num_given=num_given)) == tokens(whole)[num_given:]
    )


@pytest.mark.parametrize(
    ("grid", "window", "stride", "step"),
    [
        ((8, 12), (4, 6), None, (2, 3)),
        ((8, 12), (4, 6), 6, (4, 6)),  # side by side
        ((10, 9), (6, 3), 3, (2, 3)),
        ((5, 8), (5, 4), 2, (1, 2)),
        ((9, 10), (3, 5), None, (3, 1)),
    ],
)
def test_with_a_step_the_window_cuts_no_cell(
    grid: tuple[int, int], window: tuple[int, int], stride: int | None, step: tuple[int, int]
) -> None:
    test_every_token_is_drawn_once_in_order_and_after_all_before_it_in_its_window(
        grid, window, stride, step
    )
    runs = plan_windows(grid, window, stride, step=step)
    assert all(run.row % step[0] == 0 and run.column % step[1] == 0 for run in runs)
    # and is at most half a step off the row that it would have, but at a border
    middle = window[0] // 2
    rows = {run.row: run.start // window[1] for run in runs if 0 < run.row < grid[0] - window[0]}
    assert all(abs(row - middle) <= step[0] / 2 for row in rows.values())


@pytest.mark.parametrize(
    ("grid", "settings", "message"),
    [
        *(((h, w), {}, f"{h} × {w} codes is smaller") for h, w in ((15, 32), (32, 15), (1, 1))),
        *(((32, 32), {"stride": s}, f"stride is {s} .* 1 to 16") for s in (0, -1, 17)),
        ((17, 32), {"step": (2, 4)}, "multiple of 2 in height"),
        ((32, 32), {"stride": 3, "step": (2, 2)}, "stride is 3.* multiple of 2"),
    ],
)
def test_grids_and_strides_that_cannot_be(
    grid: tuple[int, int], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        plan_windows(grid, (16, 16), **settings)
