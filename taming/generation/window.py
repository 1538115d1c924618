"""The sliding window, for grids larger than the trained grid.

The transformer sees a window of the trained size, which moves over the larger grid with the token
to draw. (Esser et al. 2021, "Taming Transformers for High-Resolution Image Synthesis", the
paragraph on high-resolution images.)
"""

from dataclasses import dataclass, replace

from torch import Tensor

from taming.runtime.errors import UserError

__all__ = ["WindowRun", "check_windows", "next_window", "plan_windows"]


@dataclass(frozen=True)
class WindowRun:
    """Consecutive tokens that are drawn without moving the window.

    They are consecutive in the raster order of both the window and the grid. One prefill, with the
    `start` tokens before them in the window, therefore serves all of them.
    """

    row: int  # of the grid, at which the window starts
    column: int  # of the grid, at which the window starts
    start: int  # the first token's number in the window's raster order, counted from 0
    count: int  # number of tokens


def plan_windows(
    grid_size: tuple[int, int],
    window: tuple[int, int],
    stride: int | None = None,
    *,
    num_given: int = 0,
    step: tuple[int, int] = (1, 1),
) -> list[WindowRun]:
    """Returns the windows in which the tokens of a grid are drawn, in the grid's raster order.

    A token's window then contains only drawn tokens before it: the rows above it, and the columns
    to its left.

    With stride 1, the paper's scheme, a token is at row h // 2 and column w // 2 of its window,
    except near a border of the grid, where the window stays inside. Nearly every token then needs a
    prefill. With a greater stride the window starts at the nearest multiple of the stride, or at
    the last column that fits. One prefill then serves `stride` tokens, and a token is at most
    stride / 2 columns off the middle.

    Args:
        grid_size: (height, width) of the grid.
        window: (height, width) of the window, at most as large.
        stride: columns the window moves by, 1 to its width and a multiple of the step. None: a
            quarter of the width. At 16 columns that needs about a quarter of the prefills and
            leaves at least 3 / 8 of the window on either side of a token.
        num_given: number of first tokens that are not drawn.
        step: (rows, columns); the window starts at multiples of them. They divide its sides. A
            window thus never cuts through a cell of a condition image.

    Raises:
        UserError: if the grid is smaller than the window or not a multiple of the step, or the
            stride is out of range.
    """
    (grid_height, grid_width), (height, width), (row_step, column_step) = grid_size, window, step
    check_windows(grid_size, window, stride, step)
    if stride is None:
        stride = max(column_step, width // 4 // column_step * column_step)
    runs: list[WindowRun] = []
    for number in range(num_given, grid_height * grid_width):
        i, j = divmod(number, grid_width)
        row = _origin(i - height // 2, row_step, grid_height - height)
        column = _origin(j - width // 2, stride, grid_width - width)
        if runs and (runs[-1].row, runs[-1].column) == (row, column):
            # also the next token of the window; in another row only if the grid is as wide
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
        else:
            runs.append(WindowRun(row, column, start=(i - row) * width + (j - column), count=1))
    return runs


def _origin(ideal: int, step: int, largest: int) -> int:
    """Returns the multiple of the step nearest to `ideal`, at least 0 and at most `largest`."""
    nearest = (ideal + step // 2) // step * step
    return min(max(nearest, 0), largest)


def check_windows(
    grid_size: tuple[int, int],
    window: tuple[int, int],
    stride: int | None = None,
    step: tuple[int, int] = (1, 1),
) -> None:
    """Checks the arguments of `plan_windows` and `next_window`.

    Raises:
        UserError: see `plan_windows`.
    """
    (grid_height, grid_width), (height, width), (row_step, column_step) = grid_size, window, step
    if grid_height < height or grid_width < width:
        raise UserError(
            f"a grid of {grid_height} × {grid_width} codes is smaller than the "
            f"{height} × {width} codes of training: grid_size must be at least as large."
        )
    if grid_height % row_step or grid_width % column_step:
        raise UserError(
            f"a grid of {grid_height} × {grid_width} codes cuts through cells of the condition "
            f"image: grid_size must be a multiple of {row_step} in height and of {column_step} in "
            "width."
        )
    if stride is not None and (not 1 <= stride <= width or stride % column_step):
        raise UserError(
            f"stride is {stride}, but must be 1 to {width}, the width of the trained grid, and a "
            f"multiple of {column_step}."
        )


def next_window(
    is_known: Tensor,
    window: tuple[int, int],
    stride: int | None = None,
    step: tuple[int, int] = (1, 1),
) -> tuple[int, int] | None:
    """Returns the (row, column) of the window to fill next with a model of any order.

    Among the windows that are not full, it is the first one with the most known cells. An image
    therefore grows from its known cells.

    Args:
        is_known: boolean `(b h w)`, the known cells of the grid of each image.
        window: see `plan_windows`.
        stride: rows and columns between windows; None: half a window.
        step: see `plan_windows`.

    Returns:
        None if all cells are known.
    """
    (height, width), (rows, columns) = is_known.shape[1:], window
    strides = [
        max(each_step, (size // 2 if stride is None else stride) // each_step * each_step)
        for size, each_step in zip(window, step, strict=True)
    ]
    known_share = is_known.float().mean(0)  # (h w)
    best, place = -1.0, None
    for row in _origins(height - rows, strides[0]):
        for column in _origins(width - columns, strides[1]):
            share = known_share[row : row + rows, column : column + columns].mean().item()
            if best < share < 1:
                best, place = share, (row, column)
    return place


def _origins(largest: int, stride: int) -> list[int]:
    return [*range(0, largest, stride), largest]
