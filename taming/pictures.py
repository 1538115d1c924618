"""Pictures for people: images and label maps as uint8, in grids with captions and frames."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from taming.tokenizer import Tokenizer

__all__ = [
    "as_palette",
    "class_grid",
    "palette_of",
    "pixel_grid",
    "side_by_side",
    "to_uint8",
]

GAP = 2
LINE = 14  # height of a line of a caption, in pixels
INK, PAPER = (30, 30, 30), (255, 255, 255)
RIGHT, WRONG = (60, 170, 90), (220, 50, 40)  # colours of frames


def to_uint8(images: Tensor, palette: np.ndarray | None = None) -> np.ndarray:
    """Converts images or label maps `(b c H W)` to uint8 `(b H W 3)`.

    Images are clamped to [-1, 1]. Only the first three channels count, or the first one of two.
    With a palette (see `as_palette`) they are one-hot label maps or logits, and each pixel gets the
    colour of its largest channel.
    """
    if palette is not None:
        return palette[images.argmax(1).cpu().numpy()]
    images = images[:, : 3 if images.shape[1] >= 3 else 1]
    images = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()


def as_palette(colors: Sequence[Sequence[int]] | None, num_classes: int) -> np.ndarray:
    """Returns a colour for each class, uint8 `(num_classes 3)`.

    `colors` are red, green and blue, 0 to 255, by class. The default is the palette of PASCAL VOC
    (Everingham et al. 2010) with 256 different colours. The bits of the class number go to red,
    green and blue in turn, and the lowest bit becomes the highest of its colour.
    """
    if colors is None:
        numbers = np.arange(num_classes)[:, None]
        bits = [(numbers >> (3 * i + np.arange(3)) & 1) << (7 - i) for i in range(8)]
        return np.sum(bits, 0).astype(np.uint8)
    return np.array(colors[:num_classes], dtype=np.uint8)


def palette_of(
    tokenizer: Tokenizer | None, colors: Sequence[Sequence[int]] | None = None
) -> np.ndarray | None:
    """Returns the palette of a tokenizer's label maps, see `as_palette`; None for images."""
    if tokenizer is None or not tokenizer.label_maps:
        return None
    return as_palette(colors, tokenizer.image_channels)


def pixel_grid(
    pixels: np.ndarray,
    num_columns: int | None = None,
    captions: Sequence[str] | None = None,
    min_side: int = 48,
) -> Image.Image:
    """Lays out pictures, uint8 `(b H W 3)`, in rows, with captions above them if there are any.

    Small pictures are enlarged by a whole factor to at least `min_side` pixels. A caption may have
    several lines, which end at the width of the picture.
    """
    height, width = pixels.shape[1:3]
    factor = max(1, math.ceil(min_side / min(height, width)))
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    height, width = height * factor, width * factor
    num_columns = num_columns or math.ceil(math.sqrt(len(pixels)))
    num_rows = math.ceil(len(pixels) / num_columns)
    num_lines = max(caption.count("\n") + 1 for caption in captions) if captions else 0
    cell_height, cell_width = height + num_lines * LINE + GAP, width + GAP
    canvas = Image.new("RGB", (num_columns * cell_width + GAP, num_rows * cell_height + GAP), PAPER)
    draw = ImageDraw.Draw(canvas)
    for index, picture in enumerate(pixels):
        left = GAP + (index % num_columns) * cell_width
        top = GAP + (index // num_columns) * cell_height
        for number, line in enumerate(captions[index].split("\n") if captions else ()):
            draw.text((left + 1, top + number * LINE), line[: max(1, width // 6)], fill=INK)
        canvas.paste(Image.fromarray(picture), (left, top + num_lines * LINE))
    return canvas


def side_by_side(
    columns: Sequence[np.ndarray], conditions: Tensor | None, palette: np.ndarray | None = None
) -> np.ndarray:
    """Groups k pictures of each image, the condition first if there is one, as `(b k H W 3)`.

    Each of the `columns` is uint8 `(b H W 3)`. Conditions `(b c h w)` are resized to H×W. Label
    maps need their `palette`.
    """
    columns = list(columns)
    if conditions is not None:
        size = columns[0].shape[1:3]
        resized = F.interpolate(conditions.float(), size, mode="nearest-exact")  # no mixed classes
        columns.insert(0, to_uint8(resized, palette))
    return np.stack(columns, 1)


def class_grid(
    pictures: Sequence[np.ndarray],
    labels: Sequence[int],
    predictions: Sequence[int] | None,
    class_names: Sequence[str],
) -> Image.Image:
    """Lays out pictures, uint8 `(H W 3)`, in a row per class, each with its class as caption.

    With the `predictions` of a classifier, pictures get a green frame if it predicts their class.
    The others get a red frame and the predicted class in the caption.
    """
    rows = {label: [i for i, x in enumerate(labels) if x == label] for label in sorted(set(labels))}
    num_columns = max(map(len, rows.values()))
    cells, captions = [], []
    for label, numbers in rows.items():
        for number in numbers:
            cell, caption = pictures[number], class_names[label]
            if predictions is not None:
                is_right = predictions[number] == label
                cell = np.pad(cell, ((1, 1), (1, 1), (0, 0)))
                cell[[0, -1]] = cell[:, [0, -1]] = RIGHT if is_right else WRONG
                caption += "" if is_right else f"\nseen: {class_names[predictions[number]]}"
            cells.append(cell)
            captions.append(caption)
        num_missing = num_columns - len(numbers)
        cells += [np.full_like(cells[-1], 255)] * num_missing
        captions += [""] * num_missing
    return pixel_grid(np.stack(cells), num_columns, captions, min_side=96)
