"""The page that compares two models: one seed, or one picture, through both."""

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
import numpy as np

from taming.generation import ImageGenerator
from taming.pictures import to_uint8
from taming.studio.controls import DrawingControls
from taming.studio.drawing import draw_rows, to_picture, together
from taming.studio.events import on_device
from taming.studio.maps import enlarge
from taming.studio.models import StudioModel
from taming.studio.shown import show_picture
from taming.studio.uploads import upload_picture

__all__ = ["add_comparison"]


def add_comparison(models: tuple[StudioModel, StudioModel]) -> None:
    """Adds drawing with both, if both are generators, and reconstructing with both."""
    generators = [model.generator for model in models if model.generator is not None]
    if len(generators) == 2 and _requests(generators[0]) == _requests(generators[1]):
        _add_drawing(models, generators)
    elif len(generators) == 2:
        gr.Markdown("The two take different conditions: only reconstructions are compared.")
    _add_reconstruction(models)


def _requests(generator: ImageGenerator) -> tuple[Any, ...]:
    """Returns what can be requested of a generator: classes, pictures or label maps."""
    conditioning, cells = generator.conditioning, generator.condition_tokenizer
    kind = None if cells is None else (cells.label_maps, cells.image_channels)
    return conditioning.takes_images, conditioning.num_classes, kind


def _add_drawing(
    models: tuple[StudioModel, StudioModel], generators: Sequence[ImageGenerator]
) -> None:
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            controls = DrawingControls(generators[0], "Draw with both")
        grids = _pair(models, "drawn")

    def compare(*values: Any) -> Iterator[list[Any]]:
        asked = [controls.read(generator, *values) for generator in generators]
        captions = controls.captions(asked[0][1])
        both = [
            draw_rows(generator, *one) for generator, one in zip(generators, asked, strict=True)
        ]
        for steps in together(*both):
            yield [to_picture(step.pixels, captions) for step in steps]

    inputs, cancel = controls.components, controls.cancel
    on_device(controls.begin.click, compare, inputs, grids, name="compare", cancel=cancel)


def _add_reconstruction(models: tuple[StudioModel, StudioModel]) -> None:
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            upload = upload_picture()
            button = gr.Button("Reconstruct with both", variant="primary")
        grids = _pair(models, "reconstructed")

    def reconstruct(picture: Any) -> list[np.ndarray]:
        shown = []
        for model in models:
            images = model.images(picture)
            decoded = model.tokenizer.decode(model.tokenizer.encode(images))
            pair = [to_uint8(x, model.palette)[0] for x in (images, decoded)]
            shown.append(enlarge(np.concatenate(pair, 1)))
        return shown

    on_device(button.click, reconstruct, [upload], grids, name="reconstruct_both")


def _pair(models: tuple[StudioModel, StudioModel], name: str) -> list[gr.Image]:
    shown = []
    with gr.Column(scale=3, min_width=280), gr.Row():
        for number, model in enumerate(models):
            with gr.Column(min_width=240):
                shown.append(show_picture(f"`{model.name}`", f"{name}-{number}"))
    return shown
