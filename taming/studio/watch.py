"""The page that watches a training run: its curves and its newest grids."""

from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from taming.report.curves import thinned
from taming.report.records import RunRecord, read_run
from taming.studio.components import show_pictures

__all__ = ["add_watching"]

SECONDS = 5  # between two reads of the run directory
NUM_GRIDS = 4


def add_watching(page: gr.Blocks, run: Path) -> None:
    """Adds curves of the selected metrics, and the newest grids."""
    status = gr.Markdown()
    selection = gr.Dropdown([], multiselect=True, label="curves")
    plot = gr.LinePlot(x="step", y="value", color="metric", height=320)
    grids = show_pictures("Newest grids", "newest-grids", 2)
    last_state = gr.State()

    def update(names: list[str], previous: Any) -> list[Any]:
        state = _state(run)
        if state == previous:
            return [gr.skip()] * 5
        record = read_run(run)
        choices = sorted(record.metrics)  # the first validation adds some
        names = names or _default_curves(choices)
        dropdown = gr.Dropdown(choices=choices, value=names)
        return [_describe(record), _curves(record, names), _newest_grids(run), dropdown, state]

    def select(names: list[str]) -> Any:
        return _curves(read_run(run), names)

    gr.on(
        [gr.Timer(SECONDS).tick, page.load],
        update,
        [selection, last_state],
        [status, plot, grids, selection, last_state],
        api_name="watch",
        show_progress="hidden",
    )
    selection.input(select, selection, plot, api_visibility="private", show_progress="hidden")


def _state(run: Path) -> tuple[Any, ...]:
    """Returns the time stamps of the files that the training writes."""
    files = [run / "metrics.csv", run / "result.json"]
    files += sorted((run / "grids").glob("*.png"))[-NUM_GRIDS:]
    return tuple((file.name, file.stat().st_mtime_ns) for file in files if file.exists())


def _default_curves(names: list[str]) -> list[str]:
    losses = [name for name in names if name.endswith(("/loss", "/reconstruction_loss"))]
    return losses or names[:1]


def _curves(run: RunRecord, names: list[str]) -> Any:
    """Returns the selected curves as a table."""
    import pandas as pd  # comes with Gradio

    rows = [
        (step, value, name)
        for name, series in run.metrics.items()
        if name in names
        for step, value in zip(*thinned(*series), strict=True)
    ]
    return pd.DataFrame(rows, columns=["step", "value", "metric"])


def _newest_grids(run: Path) -> list[tuple[Image.Image, str]]:
    """Returns the newest grids first, without an unfinished file."""
    grids = []
    for file in sorted((run / "grids").glob("*.png"))[: -NUM_GRIDS - 1 : -1]:
        try:
            with Image.open(file, formats=["PNG"]) as opened:
                grids.append((opened.convert("RGB"), file.stem))
        except OSError:
            continue
    return grids


def _describe(run: RunRecord) -> str:
    state = "has finished" if run.is_finished else "is running or was interrupted"
    metrics = run.last_metrics() if run.is_finished else run.latest_metrics()
    numbers = ", ".join(
        f"{name.removeprefix('val/')} {value:.4g}" for name, value in sorted(metrics.items())
    )
    text = f"`{run.path}` {state}; step {run.last_step}."
    return text + (f" Validation: {numbers}." if numbers else "")
