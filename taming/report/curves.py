"""Curves of everything that metrics.csv holds: zoomable in the page, and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taming.report.page import Chart, Section
from taming.report.records import RunRecord, Series

__all__ = ["COLORS", "curve_section", "figure_json", "save_curves", "thinned"]

# of the runs; seen well on white and on black
COLORS = ("#3b82f6", "#f97316", "#10b981", "#e11d48", "#a855f7", "#0891b2", "#ca8a04", "#64748b")
MAX_POINTS = 2000  # of a curve in the page

Curve = tuple[str, str, Series]  # run, column, values
Curves = dict[str, list[Curve]]  # by title of the chart


def curve_section(runs: Sequence[RunRecord]) -> Section:
    """Returns the section of the curves, in each chart all runs."""
    explanation = "Drag over a curve to zoom in, double-click to zoom out."
    if len(runs) > 1:
        explanation += " Dotted: training; with points: validation."
    charts = [_chart(title, curves, runs) for title, curves in group_curves(runs).items()]
    return Section("Curves", explanation, list(charts))


def group_curves(runs: Sequence[RunRecord]) -> Curves:
    """Groups the columns of all runs into charts: losses, then other numbers, then step sizes.

    A number of the training and the same one of the validation share a chart.
    """
    losses: Curves = {}
    others: Curves = {}
    steps: Curves = {"learning rates": [], "gradient norms": []}
    for run in runs:
        for column, series in run.metrics.items():
            name = column.partition("/")[2] or column
            if "learning_rate" in name:
                curves = steps["learning rates"]
            elif "gradient_norm" in name:
                curves = steps["gradient norms"]
            else:
                group = losses if name.endswith("loss") else others
                curves = group.setdefault(name.replace("_", " "), [])
            curves.append((run.name, column, series))
    return {title: curves for title, curves in {**losses, **others, **steps}.items() if curves}


def _chart(title: str, curves: Sequence[Curve], runs: Sequence[RunRecord]) -> Chart:
    traces, several = [], len(runs) > 1
    for number, (run, column, series) in enumerate(curves):
        validation = not column.startswith("train/")
        color = [r.name for r in runs].index(run) if several else number
        steps, values = thinned(*series)
        traces.append(
            {
                "type": "scatter",
                "x": steps.tolist(),
                "y": [float(f"{value:.6g}") for value in values],
                "name": run if several else column,
                "legendgroup": run if several else column,
                "showlegend": not several or run not in {name for name, *_ in curves[:number]},
                "hovertemplate": f"{column} %{{y}}<br>step %{{x}}",
                "mode": "lines+markers" if validation or len(steps) < 3 else "lines",
                "line": {
                    "color": COLORS[color % len(COLORS)],
                    "width": 2 if validation else 1.3,
                    "dash": "solid" if validation or not several else "dot",
                },
                "marker": {"size": 5},
            }
        )
    return Chart(title, figure_json(traces, xaxis={"title": {"text": "step"}}))


def thinned(steps: np.ndarray, values: np.ndarray) -> Series:
    """Returns at most `MAX_POINTS` points: of as many stretches the lowest and the highest."""
    if len(steps) <= MAX_POINTS:
        return steps, values
    kept = set()
    for stretch in np.array_split(np.arange(len(steps)), MAX_POINTS // 2):
        kept |= {stretch[np.argmin(values[stretch])], stretch[np.argmax(values[stretch])]}
    chosen = np.array(sorted(kept))
    return steps[chosen], values[chosen]


def figure_json(traces: Sequence[dict[str, Any]], **layout: Any) -> str:
    """Returns a figure as the page's program draws it, checked by Plotly."""
    import plotly.graph_objects as go

    layout = {"template": "none", "margin": {"l": 52, "r": 8, "t": 8, "b": 40}, **layout}
    return go.Figure(list(traces), layout).to_json()


def save_curves(run: RunRecord, path: Path) -> None:
    """Writes all curves of a run as one picture."""
    from matplotlib.figure import Figure

    charts = list(group_curves([run]).items())
    if not charts:
        return
    num_columns = min(3, len(charts))
    num_rows = -(-len(charts) // num_columns)
    figure = Figure((4.5 * num_columns, 3 * num_rows), layout="constrained")
    for place, (title, curves) in enumerate(charts, 1):
        axis = figure.add_subplot(num_rows, num_columns, place)
        axis.set_title(title)
        axis.grid(alpha=0.3)
        for number, (_, column, (steps, values)) in enumerate(curves):
            style: Any = {"color": COLORS[number % len(COLORS)], "label": column, "linewidth": 1}
            axis.plot(steps, values, marker="" if column.startswith("train/") else ".", **style)
        if len(curves) > 1:
            axis.legend(fontsize="small")
    figure.savefig(path, dpi=100)
