"""The sliding window: a grid larger than the trained one, each token drawn within a window of it.

Esser et al. 2021, "Taming Transformers for High-Resolution Image Synthesis", the paragraph on
high-resolution images: the transformer sees a window of the size it was trained on, which moves
over the larger grid with the token that is drawn.
"""

from dataclasses import dataclass, replace

from taming.errors import UserError

__all__ = ["WindowRun", "plan_windows"]


@dataclass(frozen=True)
class WindowRun:
    """Tokens that are drawn one after the other in one place of the window.

    They follow each other in the window's raster order as in the grid's, so that one prefill, of
    the `start` tokens before them in the window, serves them all.
    """

    row: int
    """Of the grid, the window's first."""
    column: int
    """Of the grid, the window's first."""
    start: int
    """The first token's number in the window's raster order, counted from 0."""
    count: int
    """Number of tokens."""


def plan_windows(
    grid_size: tuple[int, int],
    window: tuple[int, int],
    stride: int | None = None,
    *,
    num_given: int = 0,
    step: tuple[int, int] = (1, 1),
) -> list[WindowRun]:
    """In which window each token of the grid is drawn.

    The tokens are drawn in the grid's raster order, each once. All that is before a token in its
    window has then been drawn: the window's rows above it, and in its row what is left of it.

    A token has its window's row h // 2 and column w // 2, except near a border of the grid, where
    the window stays inside. That is the paper's scheme and `stride` 1; it fills the cache anew for
    nearly every token. With a greater stride the window's first column is the nearest multiple of
    it instead (or the last that fits): one prefill serves `stride` tokens, and a token is at most
    stride / 2 columns off the middle. The default, a quarter of the window, needs about a quarter
    of the prefills at 16 columns and still leaves a token 3 / 8 of the window on either side.

    A grid no wider than the window needs one run a row, the rows near the top and near the bottom
    being one run each; a grid of the window's size is a single run.

    With a `step` the window begins only at rows and columns that divide by it: the nearest ones.
    So it does not cut through cells of a condition image that are as large as several tokens.

    Args:
        grid_size: (height, width) of the grid to draw.
        window: (height, width) of the grid the transformer was trained on.
        stride: 1 to the window's width; None is a quarter of it, rounded down to a multiple of the
            step, at least one.
        num_given: number of first tokens that are there already; the runs begin after them.
        step: (rows, columns), by which the window's sides divide; 1 sets no limit.

    Raises:
        UserError: if the grid is smaller than the window or does not divide by the step, or the
            stride is out of range or does not divide by it.
    """
    (grid_height, grid_width), (height, width) = grid_size, window
    if grid_height < height or grid_width < width:
        raise UserError(
            f"a grid of {grid_height} × {grid_width} codes is smaller than the "
            f"{height} × {width} the model was trained on: grid_size must be at least as high and "
            "as wide."
        )
    row_step, column_step = step
    if grid_height % row_step or grid_width % column_step:
        raise UserError(
            f"a grid of {grid_height} × {grid_width} codes cuts through cells of the condition "
            f"image, each {row_step} × {column_step} codes: grid_size must be a multiple of "
            f"{row_step} in height and of {column_step} in width."
        )
    if stride is None:
        stride = max(column_step, width // 4 // column_step * column_step)
    if not 1 <= stride <= width:
        raise UserError(
            f"stride is {stride} and must be 1 to {width}, the width of the grid the model was "
            "trained on."
        )
    if stride % column_step:
        raise UserError(
            f"stride is {stride}, and the window moves by whole cells of the condition image, each "
            f"{column_step} codes wide: give a multiple of {column_step}."
        )
    runs: list[WindowRun] = []
    for number in range(num_given, grid_height * grid_width):
        i, j = divmod(number, grid_width)
        row = _clamp(_nearest(i - height // 2, row_step), grid_height - height)
        column = _clamp(_nearest(j - width // 2, stride), grid_width - width)
        if runs and (runs[-1].row, runs[-1].column) == (row, column):
            # the next in the window too: it can be of another row only if the grid is as wide
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
        else:
            start = (i - row) * width + (j - column)
            runs.append(WindowRun(row, column, start, count=1))
    return runs


def _nearest(origin: int, step: int) -> int:
    return (origin + step // 2) // step * step


def _clamp(origin: int, largest: int) -> int:
    return min(max(origin, 0), largest)
