"""Heat maps, light upon images, colours of codes, tiles."""

import numpy as np

__all__ = ["code_colors", "heat", "on_image", "shrunk", "tiled"]

MIN_CELL = 8  # pixels a side of a cell with a frame


def heat(values: np.ndarray, most: float) -> np.ndarray:
    """Colours `(h w)` from 0, black, over red to `most` and above, bright: uint8 `(h w 3)`."""
    from matplotlib import colormaps

    shares = np.nan_to_num(values / most, nan=1.0).clip(0, 1)
    return (colormaps["inferno"](shares)[..., :3] * 255).round().astype(np.uint8)


def on_image(pixels: np.ndarray, values: np.ndarray, position: int | None = None) -> np.ndarray:
    """Lights an image, uint8 `(H W 3)`, up where the values of its code grid `(h w)` are high.

    The largest value is lit fully. The cell of `position` is framed green. Small images are
    enlarged, so that a frame does not fill its cell.
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
    """Returns a colour for each code, uint8 `(… 3)`: close numbers get hues far apart."""
    from matplotlib import colormaps

    hues = codes * 0.6180339887 % 1  # the golden section spreads them evenly
    return (colormaps["hsv"](hues)[..., :3] * (150 + 100 * (codes[..., None] % 2))).astype(np.uint8)


def shrunk(pictures: np.ndarray, factor: int) -> np.ndarray:
    """Averages squares of `factor` pixels a side, of uint8 `(k H W 3)`; a last part is cut off."""
    height, width = pictures.shape[1] // factor, pictures.shape[2] // factor
    whole = pictures[:, : height * factor, : width * factor]
    squares = whole.reshape(-1, height, factor, width, factor, 3)
    return squares.mean((2, 4)).round().astype(np.uint8)


def tiled(pictures: np.ndarray, num_columns: int, gap: int = 0) -> np.ndarray:
    """Lays `(k f f 3)` out, grey in the gaps and where the last row ends early: `(H W 3)`."""
    missing = -len(pictures) % num_columns
    padding = (0, missing), (0, gap), (0, gap), (0, 0)
    padded = np.pad(pictures, padding, constant_values=128)
    height, width = padded.shape[1:3]
    rows = padded.reshape(-1, num_columns, height, width, 3).swapaxes(1, 2)  # (r f k f 3)
    return rows.reshape(-1, num_columns * width, 3)
