"""One job at a time on the device, and every error as one line on the page."""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import Any

import gradio as gr
import torch

from taming.runtime.errors import UserError

__all__ = ["errors_in_page", "on_device", "reveal"]

log = logging.getLogger("taming")

# a cancelled job's last step may still be running when the queue starts the next job
_device = Lock()


@contextmanager
def errors_in_page() -> Iterator[None]:
    """Shows errors on the page: a user's mistake by its message, others by their first line."""
    try:
        yield
    except Exception as error:
        text = _describe(error)
        raise gr.Error(text, duration=None, title="", print_exception=False) from error


def _describe(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "the memory of the device is full: draw fewer images at once."
    log.error("an error in the studio", exc_info=error)
    reason = str(error).strip().split("\n")[0]
    return f"this failed ({type(error).__name__}: {reason}); the terminal shows more."


def on_device(
    listen: Callable[..., Any],
    function: Callable[..., Any],
    inputs: list[Any],
    outputs: list[Any],
    *,
    name: str | None = None,
    cancel: gr.Button | None = None,
) -> Any:
    """Runs a function, or the steps of an iterator, whenever an event occurs; one job at a time.

    Its errors appear on the page. Programs can call it only by a `name`. The button `cancel` stops
    the job, running or waiting.
    """
    event = listen(
        _guarded(function),
        inputs,
        outputs,
        api_name=name,
        api_visibility="private" if name is None else "public",
        concurrency_limit=1,
        concurrency_id="device",
        show_progress="minimal",
    )
    if cancel is not None:
        cancel.click(None, cancels=[event], api_visibility="private")
    return event


def reveal(listen: Callable[..., Any], row: gr.Row) -> None:
    """Makes a hidden row of the page visible when an event occurs."""
    listen(
        lambda: gr.Row(visible=True), None, row, api_visibility="private", show_progress="hidden"
    )


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.isgeneratorfunction(function):
        return _on_device()(function)

    @wraps(function)
    def iterate(*arguments: Any) -> Iterator[Any]:
        steps = function(*arguments)
        while True:
            with _on_device():
                step = next(steps, None)
            if step is None:
                return
            yield step

    return iterate


@contextmanager
def _on_device() -> Iterator[None]:
    with errors_in_page(), _device, torch.no_grad():
        yield
