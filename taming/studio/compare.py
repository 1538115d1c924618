"""The page that compares two models: the same seed, or the same picture, in both."""

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
import numpy as np

from taming.generation import ImageGenerator
from taming.pictures import to_uint8
from taming.studio.components import show_picture, upload_picture
from taming.studio.controls import DrawingControls
from taming.studio.drawing import draw_rows, to_picture, together
from taming.studio.events import on_device, reveal
from taming.studio.maps import enlarge
from taming.studio.models import StudioModel

__all__ = ["add_comparison"]


def add_comparison(models: tuple[StudioModel, StudioModel]) -> None:
    """Adds drawing with both models, if both are generators, and reconstructing with both."""
    generators = [model.generator for model in models if model.generator is not None]
    if len(generators) == 2 and _requests(generators[0]) == _requests(generators[1]):
        _add_drawing(models, generators)
    elif len(generators) == 2:
        gr.Markdown("The models take different conditions, so only reconstructions are compared.")
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
        row, grids = _pair(models, "drawn")

    def compare(*values: Any) -> Iterator[list[Any]]:
        settings = [controls.read(generator, *values) for generator in generators]
        captions = controls.captions(settings[0][1])
        drawings = [draw_rows(g, *one) for g, one in zip(generators, settings, strict=True)]
        for steps in together(*drawings):
            yield [to_picture(step.pixels, captions) for step in steps]

    inputs, start, cancel = controls.components, controls.start.click, controls.cancel
    on_device(start, compare, inputs, grids, name="compare", cancel=cancel)
    reveal(start, row)


def _add_reconstruction(models: tuple[StudioModel, StudioModel]) -> None:
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            upload = upload_picture("picture to reconstruct with both")
        row, grids = _pair(models, "reconstructed")

    def reconstruct(picture: Any) -> list[np.ndarray]:
        pictures = []
        for model in models:
            images = model.images(picture)
            reconstructions = model.tokenizer.decode(model.tokenizer.encode(images))
            pair = [to_uint8(x, model.palette)[0] for x in (images, reconstructions)]
            pictures.append(enlarge(np.concatenate(pair, 1)))
        return pictures

    reconstructed = on_device(upload.upload, reconstruct, [upload], grids, name="reconstruct_both")
    reveal(reconstructed.success, row)


def _pair(models: tuple[StudioModel, StudioModel], name: str) -> tuple[gr.Row, list[gr.Image]]:
    """Adds a hidden row of two pictures, one for each model."""
    pictures = []
    with gr.Column(scale=3, min_width=280), gr.Row(visible=False) as row:
        for number, model in enumerate(models):
            with gr.Column(min_width=240):
                pictures.append(show_picture(f"`{model.name}`", f"{name}-{number}"))
    return row, pictures
