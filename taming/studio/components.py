"""The page's components: pictures to show, upload and paint, and numbers with a range.

Some components get their own `preprocess` function. A subclass would not work, because Gradio
writes a file next to the module of each subclass.
"""

from io import BytesIO
from typing import Any, TypeVar

import gradio as gr
import numpy as np
from PIL import Image

from taming.runtime.errors import UserError
from taming.studio.events import errors_in_page
from taming.studio.uploads import read_picture

__all__ = ["in_range", "paint_picture", "show_picture", "show_pictures", "upload_picture"]

Ranged = TypeVar("Ranged", gr.Number, gr.Slider)

SETTINGS: dict[str, Any] = {
    "show_label": False,
    "format": "png",
    "interactive": False,
    "buttons": ["download", "fullscreen"],  # no button that uploads the picture
}


def show_picture(title: str, name: str, **settings: Any) -> gr.Image:
    """Adds a picture under its title, because Gradio's own label would cover the picture."""
    gr.Markdown(title)
    return gr.Image(label=name, elem_id=name, type="pil", **SETTINGS, **settings)


def show_pictures(title: str, name: str, num_columns: int, **settings: Any) -> gr.Gallery:
    """Adds pictures with captions under their title."""
    gr.Markdown(title)
    layout: dict[str, Any] = {"columns": num_columns, "height": "auto", "object_fit": "contain"}
    return gr.Gallery(label=name, elem_id=name, **layout, **SETTINGS, **settings)


def upload_picture(label: str = "picture") -> gr.Image:
    """Adds a picture to upload or paste, which `read_picture` reads."""
    picture = gr.Image(label=label, type="pil", sources=["upload", "clipboard"], height=260)

    def preprocess(payload: Any) -> Image.Image | None:
        with errors_in_page():
            return None if payload is None else read_picture(payload.path)

    picture.preprocess = preprocess
    return picture


def paint_picture(label: str, palette: np.ndarray | None = None, **settings: Any) -> gr.ImageEditor:
    """Adds a canvas to paint on, empty or on an uploaded picture.

    Its value is the visible picture as RGB, or None for an empty canvas. With `palette`, uint8
    `(c 3)`, the user can only paint in these colours.
    """
    if palette is not None:
        colors = ["#{:02x}{:02x}{:02x}".format(*color) for color in palette]
        brush = gr.Brush(colors=colors, default_color=colors[-1], color_mode="fixed")
        settings |= {"brush": brush, "eraser": False}
    settings |= {"sources": ("upload", "clipboard"), "transforms": (), "layers": False}
    canvas = gr.ImageEditor(label=label, type="pil", format="png", **settings)
    read = canvas.preprocess

    def preprocess(payload: Any) -> Any:
        with errors_in_page():
            value = read(payload)
        if value is None or not any([value["background"], *value["layers"]]):
            return None
        return value["composite"]

    canvas.convert_and_format_image = _read_layer
    canvas.preprocess = preprocess
    return canvas


def _read_layer(file: Any, flatten_on_white: bool = False) -> Image.Image | None:
    """Reads one picture of a canvas from a file or bytes; returns None if it is empty."""
    if file is None:
        return None
    picture = read_picture(BytesIO(file) if isinstance(file, bytes) else file.path, alpha=True)
    if picture.getbbox() is None:  # transparent everywhere
        return None
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def in_range(component: Ranged) -> Ranged:
    """Turns an empty or out-of-range value into a one-line error on the page."""
    read = component.preprocess
    least, greatest = component.minimum, component.maximum

    def preprocess(payload: Any) -> Any:
        with errors_in_page():
            if payload is None:
                raise UserError(f"{component.label} is empty: give a number.")
            if (least is not None and payload < least) or (
                greatest is not None and payload > greatest
            ):
                limits = f"at least {least:g}" if greatest is None else f"{least:g} to {greatest:g}"
                raise UserError(f"{component.label} is {payload:g}, but must be {limits}.")
            return read(payload)

    component.preprocess = preprocess
    return component
