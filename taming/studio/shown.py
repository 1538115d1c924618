"""Pictures that the page shows."""

from typing import Any

import gradio as gr

__all__ = ["show_picture", "show_pictures"]

SETTINGS: dict[str, Any] = {
    "show_label": False,
    "format": "png",
    "interactive": False,
    "buttons": ["download", "fullscreen"],  # and none that uploads it
}


def show_picture(title: str, name: str, **settings: Any) -> gr.Image:
    """Adds a picture under its title: Gradio's own label would lie on it."""
    gr.Markdown(title)
    return gr.Image(label=name, elem_id=name, type="pil", **SETTINGS, **settings)


def show_pictures(title: str, name: str, num_columns: int, **settings: Any) -> gr.Gallery:
    """Adds pictures with captions under their title."""
    gr.Markdown(title)
    look: dict[str, Any] = {"columns": num_columns, "height": "auto", "object_fit": "contain"}
    return gr.Gallery(label=name, elem_id=name, **look, **SETTINGS, **settings)
