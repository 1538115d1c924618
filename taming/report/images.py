"""Heat maps, highlighted images, colours of codes, tiles. Arrays are uint8 pixels."""

import numpy as np

__all__ = ["code_colors", "heat", "on_image", "shrunk", "tiled"]

MIN_CELL = 8  # pixels per side of a framed cell


def heat(values: np.ndarray, maximum: float) -> np.ndarray:
    """Colours `(h w)` from black at 0 over red to bright at `maximum` and above: `(h w 3)`."""
    from matplotlib import colormaps

    shares = np.nan_to_num(values / maximum, nan=1.0).clip(0, 1)
    return (colormaps["inferno"](shares)[..., :3] * 255).round().astype(np.uint8)


def on_image(pixels: np.ndarray, values: np.ndarray, position: int | None = None) -> np.ndarray:
    """Highlights an image `(H W 3)` where the values of its code grid `(h w)` are high.

    The largest value has full brightness. The cell at `position` gets a green frame. Small images
    are enlarged so that the frame does not fill the cell.
    """
    factor = -(-MIN_CELL * values.shape[0] // pixels.shape[0])
    pixels = pixels.repeat(factor, 0).repeat(factor, 1)
    height, width = pixels.shape[0] // values.shape[0], pixels.shape[1] // values.shape[1]
    shares = values / max(values.max(), 1e-12)
    light = shares.repeat(height, 0).repeat(width, 1)[..., None]  # (H W 1)
    grey = pixels.mean(2, keepdims=True) * 0.35
    lit = (1 - light) * grey + light * (0.4 * pixels + 0.6 * np.array([255, 170, 20]))
    lit = lit.round().astype(np.uint8)
    if position is not None:
        row, column = divmod(position, values.shape[1])
        cell = lit[row * height : (row + 1) * height, column * width : (column + 1) * width]
        cell[[0, -1]] = cell[:, [0, -1]] = (40, 220, 110)
    return lit


def code_colors(codes: np.ndarray) -> np.ndarray:
    """Returns a colour for each code `(…)`: `(… 3)`. Neighbouring codes differ in hue."""
    from matplotlib import colormaps

    hues = codes * 0.6180339887 % 1  # multiples of the golden ratio are evenly spread
    return (colormaps["hsv"](hues)[..., :3] * (150 + 100 * (codes[..., None] % 2))).astype(np.uint8)


def shrunk(pictures: np.ndarray, factor: int) -> np.ndarray:
    """Averages squares of `factor` pixels per side: `(k H W 3)` to `(k H/factor W/factor 3)`."""
    height, width = pictures.shape[1] // factor, pictures.shape[2] // factor
    whole = pictures[:, : height * factor, : width * factor]
    squares = whole.reshape(-1, height, factor, width, factor, 3)
    return squares.mean((2, 4)).round().astype(np.uint8)


def tiled(pictures: np.ndarray, num_columns: int, gap: int = 0) -> np.ndarray:
    """Arranges `(k f f 3)` in rows, with grey gaps and a grey end of the last row: `(H W 3)`."""
    missing = -len(pictures) % num_columns
    padding = (0, missing), (0, gap), (0, gap), (0, 0)
    padded = np.pad(pictures, padding, constant_values=128)
    height, width = padded.shape[1:3]
    rows = padded.reshape(-1, num_columns, height, width, 3).swapaxes(1, 2)  # (r f k f 3)
    return rows.reshape(-1, num_columns * width, 3)
