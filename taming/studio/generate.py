"""The pages that draw images: by a condition alone, or beginning with the user's picture."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from taming.studio.controls import DrawingControls
from taming.studio.drawing import draw_rows, to_picture
from taming.studio.events import on_device
from taming.studio.models import StudioModel
from taming.studio.shown import show_picture
from taming.studio.uploads import paint_picture

__all__ = ["add_drawing"]


def add_drawing(model: StudioModel, completing: bool = False) -> tuple[gr.Image, gr.State]:
    """Adds the controls and the grid; returns the grid and what is in it, a `Drawn` or None.

    When `completing`, there is a picture to upload or draw upon, whose first rows of codes are
    kept.
    """
    generator = model.generator
    assert generator is not None
    height, _ = generator.grid_size
    name, action = ("complete", "Complete") if completing else ("generate", "Draw")
    begun: list[Any] = []  # the picture, and how many rows of it
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            if completing:
                picture = paint_picture(
                    "picture: upload one, draw upon it, or draw it", model.palette
                )
                keep_rows = gr.Slider(
                    1,
                    height - 1,
                    height // 2,
                    step=1,
                    label="rows kept",
                    info=f"of {height} rows of codes, from the top",
                    interactive=True,
                )
                begun = [picture, keep_rows]
            controls = DrawingControls(generator, action)
        with gr.Column(scale=2, min_width=280):
            note = "Row after row; a click on a finished image looks into it."
            grid = show_picture(note, f"{name}d")
            drawn = gr.State()

    def draw(*values: Any) -> Iterator[tuple[Any, Any]]:
        num_images, condition, options = controls.read(generator, *values[len(begun) :])
        given_tokens = None
        if completing:
            first = generator.first_tokens(model.images(values[0]), int(values[1]))
            given_tokens = first.expand(num_images, -1)
        captions = controls.captions(condition)
        for step in draw_rows(generator, num_images, condition, options, given_tokens):
            yield to_picture(step.pixels, captions), step

    inputs = [*begun, *controls.components]
    on_device(controls.begin.click, draw, inputs, [grid, drawn], name=name, cancel=controls.cancel)
    return grid, drawn
