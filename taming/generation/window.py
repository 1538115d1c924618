"""The sliding window: a grid larger than the trained one, each token drawn within a window of it.

Esser et al. 2021, "Taming Transformers for High-Resolution Image Synthesis", the paragraph on
high-resolution images: the transformer sees a window of the size it was trained on, which moves
over the larger grid with the token that is drawn.
"""

from dataclasses import dataclass, replace

from taming.runtime.errors import UserError

__all__ = ["WindowRun", "plan_windows"]


@dataclass(frozen=True)
class WindowRun:
    """Tokens that are drawn one after the other in one place of the window.

    They follow each other in the window's raster order as in the grid's, so that one prefill, of
    the `start` tokens before them in the window, serves them all.
    """

    row: int  # of the grid, the window's first
    column: int  # likewise
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
    """Returns the window in which each token of the grid is drawn, in the grid's raster order.

    All that is before a token in its window has then been drawn: the window's rows above it, and
    what is left of it in its row. The first `num_given` tokens are there already.

    A token has its window's row h // 2 and column w // 2, except near a border of the grid, where
    the window stays inside. That is the paper's scheme and `stride` 1; it fills the cache anew for
    nearly every token. With a greater stride, at most the window's width, its first column is the
    nearest multiple of it instead (or the last that fits): one prefill serves `stride` tokens, and
    a token is at most stride / 2 columns off the middle. The default, a quarter of the window,
    needs about a quarter of the prefills at 16 columns and still leaves a token 3 / 8 of the window
    on either side.

    The window begins only at multiples of `step`, (rows, columns), by which its sides divide, so as
    not to cut through cells of a condition image of several tokens; the stride must be one, too.

    Raises:
        UserError: if the grid is smaller than the window or does not divide by the step, or the
            stride is out of range.
    """
    (grid_height, grid_width), (height, width), (row_step, column_step) = grid_size, window, step
    if grid_height < height or grid_width < width:
        raise UserError(
            f"a grid of {grid_height} × {grid_width} codes is smaller than the "
            f"{height} × {width} the model was trained on: grid_size must be at least as high and "
            "as wide."
        )
    if grid_height % row_step or grid_width % column_step:
        raise UserError(
            f"a grid of {grid_height} × {grid_width} codes cuts through cells of the condition "
            f"image: grid_size must be a multiple of {row_step} in height and of {column_step} in "
            "width."
        )
    if stride is None:
        stride = max(column_step, width // 4 // column_step * column_step)
    if not 1 <= stride <= width or stride % column_step:
        raise UserError(
            f"stride is {stride} and must be 1 to {width}, the width of the grid the model was "
            f"trained on, and a multiple of {column_step}."
        )
    runs: list[WindowRun] = []
    for number in range(num_given, grid_height * grid_width):
        i, j = divmod(number, grid_width)
        row = _origin(i - height // 2, row_step, grid_height - height)
        column = _origin(j - width // 2, stride, grid_width - width)
        if runs and (runs[-1].row, runs[-1].column) == (row, column):
            # the next in the window too: it can be of another row only if the grid is as wide
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
        else:
            runs.append(WindowRun(row, column, start=(i - row) * width + (j - column), count=1))
    return runs


def _origin(wanted: int, step: int, largest: int) -> int:
    """Returns the nearest multiple of the step from 0 to the largest, or the largest itself."""
    nearest = (wanted + step // 2) // step * step
    return min(max(nearest, 0), largest)
