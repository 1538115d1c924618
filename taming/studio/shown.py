"""Pictures that the page shows."""

from typing import Any

import gradio as gr

__all__ = ["show_picture", "show_pictures"]


def show_picture(title: str, name: str, **settings: Any) -> gr.Image:
    """Adds a picture under its title: Gradio's own label would lie on it."""
    gr.Markdown(title)
    return gr.Image(
        label=name,
        show_label=False,
        elem_id=name,
        format="png",
        type="pil",
        interactive=False,
        buttons=["download", "fullscreen"],  # and none that uploads it
        **settings,
    )


def show_pictures(title: str, name: str, num_columns: int, **settings: Any) -> gr.Gallery:
    """Adds pictures with captions under their title."""
    gr.Markdown(title)
    return gr.Gallery(
        label=name,
        show_label=False,
        elem_id=name,
        format="png",
        columns=num_columns,
        height="auto",
        object_fit="contain",
        interactive=False,
        buttons=["download", "fullscreen"],
        **settings,
    )
