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

__all__ = ["Drawn", "draw_rows", "num_columns", "to_picture", "together"]

UNDRAWN = 200  # grey


@dataclass(frozen=True)
class Drawn:
    """Images as far as they are drawn, on the CPU."""

    tokens: Tensor  # (b n) int64, whole rows
    pixels: np.ndarray  # uint8 (b H W 3), what is not drawn yet in grey
    condition: Tensor | None = None  # see `draw_rows`

    def one(self, number: int) -> "Drawn":
        """Returns one of them, b = 1."""
        some = slice(number, number + 1)
        condition = None if self.condition is None else self.condition[some]
        return Drawn(self.tokens[some], self.pixels[some], condition)


def draw_rows(
    generator: ImageGenerator,
    num_images: int,
    condition: Tensor | None,
    options: SamplingOptions,
    given_tokens: Tensor | None = None,
) -> Iterator[Drawn]:
    """Draws the images that `ImageGenerator.sample` draws, and yields them after rows of codes.

    Decoding takes at most as long as drawing: on slow machines some rows are not shown by
    themselves. A condition is labels `(b,)`, or codes `(b h w)` of condition images; of
    `given_tokens`, `(b m)`, whole rows are shown first.
    """
    drawing = decoding = 0.0
    began = perf_counter()
    for tokens in generator.sample_rows(num_images, condition, given_tokens, options=options):
        drawn = perf_counter()
        drawing += drawn - began
        if decoding <= drawing or tokens.shape[1] == generator.num_tokens:
            yield _decode(generator, tokens, condition)
        began = perf_counter()
        decoding += began - drawn


def _decode(generator: ImageGenerator, tokens: Tensor, condition: Tensor | None) -> Drawn:
    height, width = generator.grid_size
    num_rows = tokens.shape[1] // width
    images = generator.decode(tokens, (num_rows, width))
    pixels = to_uint8(images, palette_of(generator.tokenizer))
    missing = (height - num_rows) * generator.require_tokenizer().downsample_factor
    below = (0, 0), (0, missing), (0, 0), (0, 0)
    shown = np.pad(pixels, below, constant_values=UNDRAWN)
    return Drawn(tokens.cpu(), shown, condition)


def together(*drawings: Iterable[Drawn]) -> Iterator[tuple[Drawn, ...]]:
    """Yields the steps of several drawings; one that has ended stays as it is."""
    last: tuple[Drawn | None, ...] = (None,) * len(drawings)
    for steps in zip_longest(*drawings):
        last = tuple(step or before for step, before in zip(steps, last, strict=True))
        yield last  # type: ignore[misc]  # each begins with a step


def num_columns(num_images: int) -> int:
    """Returns how many images `to_picture` lays in a row."""
    return int(np.ceil(np.sqrt(num_images)))


def to_picture(pixels: np.ndarray, captions: Sequence[str] | None = None) -> Image.Image:
    """Lays out images, uint8 `(b H W 3)`, in rows, under their captions."""
    side = 96 if len(pixels) > 1 else 256
    return pixel_grid(pixels, num_columns(len(pixels)), captions, min_side=side)
