"""The studio's page, made of tabs, and its server."""

import logging
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import gradio as gr

from taming.runtime.errors import UserError
from taming.studio.compare import add_comparison
from taming.studio.generate import add_drawing
from taming.studio.look import LookPage
from taming.studio.models import StudioModel
from taming.studio.uploads import MAX_FILE_SIZE
from taming.studio.watch import add_watching

__all__ = ["build_studio", "check_access", "serve"]

log = logging.getLogger("taming")

MAX_WAITING = 20  # jobs in the queue
MAX_AGE = 3600  # seconds, of uploads and results


def build_studio(
    model: StudioModel | None, other: StudioModel | None = None, run: Path | None = None
) -> gr.Blocks:
    """Builds the page: `model`, its comparison with `other`, and the training run in `run`.

    `model` is None for a run without a model yet.
    """
    studio = gr.Blocks(title="Studio", analytics_enabled=False, delete_cache=(MAX_AGE, MAX_AGE))
    with studio:
        gr.Markdown("# Studio\n" + ("" if model is None else model.description))
        with gr.Tabs() as tabs:
            if model is not None:
                _add_model(model, tabs)
            if model is not None and other is not None:
                with gr.Tab("Compare"):
                    add_comparison((model, other))
            if run is not None:
                with gr.Tab("Training"):
                    add_watching(studio, run)
    return studio.queue(max_size=MAX_WAITING, default_concurrency_limit=4)


def _add_model(model: StudioModel, tabs: gr.Tabs) -> None:
    grids = []
    if model.generator is not None:
        with gr.Tab("Generate"):
            grids.append(add_drawing(model))
        if model.grid_size[0] > 1:
            with gr.Tab("Complete"):
                grids.append(add_drawing(model, completing=True))
    with gr.Tab("Look", id="look"):
        page = LookPage(model)
    for grid, drawing in grids:
        page.listen_to(grid, drawing, tabs, "look")


def serve(
    studio: gr.Blocks,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    user: str = "studio",
    password: str | None = None,
    wait: bool = True,
) -> str:
    """Serves the page and returns its address. Neither server nor page contacts other machines.

    Without a `port` it takes the first free one from 7860 on, and without a `password` it needs no
    login. If `wait`, it returns only after an interrupt.

    Raises:
        UserError: if it may not or cannot listen there.
    """
    check_access(host, password)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # Gradio calls its own server
    try:
        _, address, _ = studio.launch(
            server_name=host,
            server_port=port,
            auth=(user, password) if password else None,
            max_file_size=MAX_FILE_SIZE,
            prevent_thread_lock=True,
            show_error=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=["api"],
            theme=gr.themes.Default(),
        )
    except OSError as error:
        raise UserError(f"the studio cannot listen on {host}: {error}.") from error
    log.info("the studio is at %s (press Ctrl-C to stop it)", address)
    if wait:
        studio.block_thread()
    return address


def check_access(host: str, password: str | None) -> None:
    """Raises a `UserError` if other machines could reach the studio without a password."""
    is_this_machine = host == "localhost"
    with suppress(ValueError):  # the name of a host
        is_this_machine |= ip_address(host).is_loopback
    if not is_this_machine and not password:
        raise UserError(
            f"host={host} lets other machines connect. Set a password in the environment variable "
            "TAMING_STUDIO_PASSWORD or with password=…, or leave host out."
        )
