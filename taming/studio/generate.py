"""The pages that draw images from a condition, or complete the user's picture."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from taming.studio.components import in_range, paint_picture, show_picture
from taming.studio.controls import DrawingControls
from taming.studio.drawing import draw_rows, to_picture
from taming.studio.events import on_device
from taming.studio.models import StudioModel

__all__ = ["add_drawing"]


def add_drawing(model: StudioModel, completing: bool = False) -> tuple[gr.Image, gr.State]:
    """Adds controls and a grid of images; returns the grid and its state, a `Drawing` or None.

    With `completing`, it also adds a picture to upload or paint. Its first rows of codes are kept.
    """
    generator = model.generator
    assert generator is not None
    height, _ = generator.grid_size
    name, action = ("complete", "Complete") if completing else ("generate", "Draw")
    completion: list[Any] = []  # the picture, and the number of rows to keep
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            if completing:
                picture = paint_picture("picture", model.palette)
                info = f"of {height} rows of codes, from the top"
                keep_rows = gr.Slider(
                    1, height - 1, height // 2, step=1, label="rows to keep", info=info,
                    interactive=True,
                )  # fmt: skip
                completion = [picture, in_range(keep_rows)]
            controls = DrawingControls(generator, action)
        with gr.Column(scale=2, min_width=280):
            note = "Images appear row by row. Click a finished image to look into it."
            grid = show_picture(note, f"{name}d")
            drawing = gr.State()

    def draw(*values: Any) -> Iterator[tuple[Any, Any]]:
        num_images, condition, options = controls.read(generator, *values[len(completion) :])
        given_tokens = None
        if completing:
            first = generator.first_tokens(model.images(values[0]), int(values[1]))
            given_tokens = first.expand(num_images, -1)
        captions = controls.captions(condition)
        for step in draw_rows(generator, num_images, condition, options, given_tokens):
            yield to_picture(step.pixels, captions), step

    inputs, outputs = [*completion, *controls.components], [grid, drawing]
    on_device(controls.start.click, draw, inputs, outputs, name=name, cancel=controls.cancel)
    return grid, drawing
