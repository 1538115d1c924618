"""Everything that becomes a PNG: grids of images and label maps, captions, palettes, frames."""

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
LINE = 14  # pixels of a caption's line
INK, PAPER = (30, 30, 30), (255, 255, 255)
GOOD, BAD = (60, 170, 90), (220, 50, 40)  # of frames


def to_uint8(images: Tensor, palette: np.ndarray | None = None) -> np.ndarray:
    """Converts pictures or label maps `(b c H W)` to uint8 `(b H W 3)`.

    Pictures are in [-1, 1], clamped; of other channels than 1 or 3 the first three are shown, or
    the first. With a palette (see `as_palette`) they are label maps, one-hot or logits: each pixel
    gets the colour of its largest channel.
    """
    if palette is not None:
        return palette[images.argmax(1).cpu().numpy()]
    images = images[:, : 3 if images.shape[1] >= 3 else 1]
    images = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()


def as_palette(colors: Sequence[Sequence[int]] | None, num_classes: int) -> np.ndarray:
    """Returns a colour for each class, uint8 `(num_classes 3)`.

    `colors` are red, green and blue, 0 to 255, by class; None: those of PASCAL VOC (Everingham
    et al. 2010), up to 256, all distinct: the bits of the class number are dealt to red, green and
    blue in turn, the lowest bit to the highest.
    """
    if colors is None:
        numbers = np.arange(num_classes)[:, None]
        bits = [(numbers >> (3 * i + np.arange(3)) & 1) << (7 - i) for i in range(8)]
        return np.sum(bits, 0).astype(np.uint8)
    return np.array(colors[:num_classes], dtype=np.uint8)


def palette_of(
    tokenizer: Tokenizer | None, colors: Sequence[Sequence[int]] | None = None
) -> np.ndarray | None:
    """Returns the palette of a tokenizer's label maps, see `as_palette`; None for pictures."""
    if tokenizer is None or not tokenizer.label_maps:
        return None
    return as_palette(colors, tokenizer.image_channels)


def pixel_grid(
    pixels: np.ndarray,
    num_columns: int | None = None,
    captions: Sequence[str] | None = None,
    min_side: int = 48,
) -> Image.Image:
    """Lays out pictures, uint8 `(b H W 3)`, in rows, each under its caption if there are captions.

    Small pictures are enlarged by a whole factor to at least `min_side` pixels. A caption may have
    several lines; the part that is wider than its picture is cut off.
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
    """Groups k pictures of each image, the condition first if there is one, uint8 `(b k H W 3)`.

    `columns` are uint8 `(b H W 3)` each; conditions `(b c h w)` are resized to H×W, and shown with
    `palette` if they are label maps.
    """
    columns = list(columns)
    if conditions is not None:
        # nearest: the classes of label maps are not mixed
        shown = F.interpolate(conditions.float(), columns[0].shape[1:3], mode="nearest-exact")
        columns.insert(0, to_uint8(shown, palette))
    return np.stack(columns, 1)


def class_grid(
    pictures: Sequence[np.ndarray],
    labels: Sequence[int],
    predictions: Sequence[int] | None,
    class_names: Sequence[str],
) -> Image.Image:
    """Lays out pictures by class, a row each: recognised ones framed green, mistaken ones red.

    Above each one, uint8 `(H W 3)`, stands its class, and below that the class a mistaken one was
    taken for. `predictions` are a classifier's; None without one.
    """
    rows = {label: [i for i, x in enumerate(labels) if x == label] for label in sorted(set(labels))}
    num_columns = max(map(len, rows.values()))
    cells, captions = [], []
    for label, numbers in rows.items():
        for number in numbers:
            cell, caption = pictures[number], class_names[label]
            if predictions is not None:
                right = predictions[number] == label
                cell = np.pad(cell, ((1, 1), (1, 1), (0, 0)))
                cell[[0, -1]] = GOOD if right else BAD
                cell[:, [0, -1]] = GOOD if right else BAD
                caption += "" if right else f"\nseen: {class_names[predictions[number]]}"
            cells.append(cell)
            captions.append(caption)
        num_missing = num_columns - len(numbers)
        cells += [np.full_like(cells[-1], 255)] * num_missing
        captions += [""] * num_missing
    return pixel_grid(np.stack(cells), num_columns, captions, min_side=96)  # wide enough
