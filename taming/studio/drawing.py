"""Images while they are drawn, row after row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from time import perf_counter

import numpy as np
from PIL import Image
from torch import Tensor

from taming.generation import ImageGenerator, SamplingOptions
from taming.pictures import palette_of, pixel_grid, to_uint8
from taming.transformer.orders import to_indices

__all__ = ["Drawing", "draw_rows", "is_finished", "num_columns", "to_picture", "together"]

UNDRAWN = 200  # grey


@dataclass(frozen=True)
class Drawing:
    """Images, complete or not, on the CPU."""

    tokens: Tensor  # (b n) int64, whole rows; -1 for tokens still to draw
    pixels: np.ndarray  # uint8 (b H W 3), with missing codes in grey
    condition: Tensor | None = None  # see `draw_rows`

    def one(self, number: int) -> "Drawing":
        """Returns only one of the images, b = 1."""
        rows = slice(number, number + 1)
        condition = None if self.condition is None else self.condition[rows]
        return Drawing(self.tokens[rows], self.pixels[rows], condition)


def draw_rows(
    generator: ImageGenerator,
    num_images: int,
    condition: Tensor | None,
    options: SamplingOptions,
    given_tokens: Tensor | None = None,
) -> Iterator[Drawing]:
    """Draws the images that `ImageGenerator.sample` draws, and yields them row by row.

    It spends at most as much time on decoding as on drawing, so on slow machines it skips rows.

    The condition is labels `(b,)`, or codes `(b h w)` of condition images. The whole rows of
    `given_tokens` `(b m)` come first.
    """
    sampling_time = decoding_time = 0.0
    start = perf_counter()
    for tokens in generator.sample_rows(num_images, condition, given_tokens, options=options):
        middle = perf_counter()
        sampling_time += middle - start
        if decoding_time <= sampling_time or is_finished(tokens, generator.num_tokens):
            yield _decode(generator, tokens, condition)
        start = perf_counter()
        decoding_time += start - middle


def _decode(generator: ImageGenerator, tokens: Tensor, condition: Tensor | None) -> Drawing:
    height, width = generator.grid_size
    num_rows, factor = tokens.shape[1] // width, generator.require_tokenizer().downsample_factor
    images = generator.decode(tokens.clamp(min=0), (num_rows, width))
    pixels = to_uint8(images, palette_of(generator.tokenizer))
    missing = (height - num_rows) * factor
    below = (0, 0), (0, missing), (0, 0), (0, 0)
    pixels = np.pad(pixels, below, constant_values=UNDRAWN)
    undrawn = (to_indices(tokens, (num_rows, width)) < 0).cpu().numpy()  # (b rows columns)
    pixels[:, : num_rows * factor][undrawn.repeat(factor, 1).repeat(factor, 2)] = UNDRAWN
    return Drawing(tokens.cpu(), pixels, condition)


def is_finished(tokens: Tensor, num_tokens: int) -> bool:
    """Whether these are all tokens of images."""
    return tokens.shape[1] == num_tokens and int(tokens.min()) >= 0


def together(*drawings: Iterable[Drawing]) -> Iterator[tuple[Drawing, ...]]:
    """Yields the steps of several drawings; a finished one stays as it is."""
    last: tuple[Drawing | None, ...] = (None,) * len(drawings)
    for steps in zip_longest(*drawings):
        last = tuple(step or before for step, before in zip(steps, last, strict=True))
        yield last  # type: ignore[misc]  # each has a first step


def num_columns(num_images: int) -> int:
    """Returns how many images `to_picture` puts in a row."""
    return int(np.ceil(np.sqrt(num_images)))


def to_picture(pixels: np.ndarray, captions: Sequence[str] | None = None) -> Image.Image:
    """Arranges images, uint8 `(b H W 3)`, in rows under their captions."""
    side = 96 if len(pixels) > 1 else 256
    return pixel_grid(pixels, num_columns(len(pixels)), captions, min_side=side)
