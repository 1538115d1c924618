"""The pages that draw images: by a condition alone, or beginning with the user's picture."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from taming.studio.controls import ConditionControls, SamplingControls
from taming.studio.drawing import draw_rows, to_picture
from taming.studio.events import on_device
from taming.studio.models import StudioModel
from taming.studio.shown import show_picture
from taming.studio.uploads import paint_picture, to_images

__all__ = ["add_completion", "add_generation"]

NOTE = "Row after row; a click on a finished image looks into it."


def add_generation(model: StudioModel) -> tuple[gr.Image, gr.State]:
    """Adds the controls and the grid; returns the grid and what is in it, a `Drawn` or None."""
    generator = model.generator
    assert generator is not None
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            conditions = ConditionControls(generator)
            sampling = SamplingControls(generator)
            with gr.Row():
                draw = gr.Button("Draw", variant="primary")
                cancel = gr.Button("Cancel")
        with gr.Column(scale=2, min_width=280):
            grid = show_picture(NOTE, "generated")
            drawn = gr.State()

    def generate(*values: Any) -> Iterator[tuple[Any, Any]]:
        count = len(sampling.components)
        num_images, options = sampling.read(*values[:count])
        condition = conditions.read(num_images, *values[count:])
        for step in draw_rows(generator, num_images, condition, options):
            yield to_picture(step.pixels, conditions.captions(step.condition)), step

    on_device(
        draw.click,
        generate,
        [*sampling.components, *conditions.components],
        [grid, drawn],
        name="generate",
        cancel=cancel,
    )
    return grid, drawn


def add_completion(model: StudioModel) -> tuple[gr.Image, gr.State]:
    """Adds a picture to upload or draw upon, whose first rows of codes are kept; as above."""
    generator = model.generator
    assert generator is not None
    height, _ = generator.grid_size
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            canvas = paint_picture("picture: upload one, draw upon it, or draw it", **_brush(model))
            keep_rows = gr.Slider(
                1,
                max(1, height - 1),
                height // 2,
                step=1,
                label="rows kept",
                info=f"of {height} rows of codes, from the top",
                interactive=True,
            )
            conditions = ConditionControls(generator)
            sampling = SamplingControls(generator)
            with gr.Row():
                draw = gr.Button("Complete", variant="primary")
                cancel = gr.Button("Cancel")
        with gr.Column(scale=2, min_width=280):
            grid = show_picture(NOTE, "completed")
            drawn = gr.State()

    def complete(picture: Any, rows: float, *values: Any) -> Iterator[tuple[Any, Any]]:
        count = len(sampling.components)
        num_images, options = sampling.read(*values[:count])
        condition = conditions.read(num_images, *values[count:])
        images = to_images(picture, model.tokenizer, generator.grid_size, model.palette)
        given_tokens = generator.first_tokens(images, int(rows)).expand(num_images, -1)
        for step in draw_rows(generator, num_images, condition, options, given_tokens):
            yield to_picture(step.pixels, conditions.captions(step.condition)), step

    on_device(
        draw.click,
        complete,
        [canvas, keep_rows, *sampling.components, *conditions.components],
        [grid, drawn],
        name="complete",
        cancel=cancel,
    )
    return grid, drawn


def _brush(model: StudioModel) -> dict[str, Any]:
    """Returns the settings of a canvas on which label maps are painted; none for pictures."""
    if model.palette is None:
        return {}
    colors = ["#{:02x}{:02x}{:02x}".format(*color) for color in model.palette]
    return {"brush": gr.Brush(colors=colors, color_mode="fixed"), "eraser": False}
