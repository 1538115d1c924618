"""Curves of all metrics in metrics.csv, as interactive charts and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taming.report.page import Chart, Section
from taming.report.records import RunRecord, Series

__all__ = ["COLORS", "curve_section", "figure_json", "save_curves", "thinned"]

# one per run; readable on white and on black
COLORS = ("#3b82f6", "#f97316", "#10b981", "#e11d48", "#a855f7", "#0891b2", "#ca8a04", "#64748b")
MAX_POINTS = 2000  # per curve
FEW_POINTS = 3  # a curve with fewer points needs markers to be visible

Curve = tuple[str, str, Series]  # run, column, values
Charts = dict[str, list[Curve]]  # by title


def curve_section(runs: Sequence[RunRecord]) -> Section:
    """Returns a section with one chart per metric, which shows all runs."""
    legend = "Dotted lines: training. Lines with points: validation." if len(runs) > 1 else ""
    charts = [_chart(title, curves, runs) for title, curves in group_curves(runs).items()]
    hint = "Drag over a curve to zoom in, double-click to zoom out."
    return Section("Curves", legend, hint, list(charts))


def group_curves(runs: Sequence[RunRecord]) -> Charts:
    """Groups columns into charts: losses, other metrics, learning rates, gradient norms.

    Training and validation values of one metric share a chart.
    """
    losses: Charts = {}
    metrics: Charts = {}
    steps: Charts = {"learning rates": [], "gradient norms": []}
    for run in runs:
        for column, series in run.metrics.items():
            name = column.partition("/")[2] or column
            if "learning_rate" in name:
                curves = steps["learning rates"]
            elif "gradient_norm" in name:
                curves = steps["gradient norms"]
            else:
                group = losses if name.endswith("loss") else metrics
                curves = group.setdefault(name.replace("_", " "), [])
            curves.append((run.name, column, series))
    return {title: curves for title, curves in {**losses, **metrics, **steps}.items() if curves}


def _chart(title: str, curves: Sequence[Curve], runs: Sequence[RunRecord]) -> Chart:
    traces, has_several_runs = [], len(runs) > 1
    for number, (run, column, series) in enumerate(curves):
        is_training = column.startswith("train/")
        color = [r.name for r in runs].index(run) if has_several_runs else number
        steps, values = thinned(*series)
        is_first_of_run = run not in {name for name, *_ in curves[:number]}
        traces.append(
            {
                "type": "scatter",
                "x": steps.tolist(),
                "y": [float(f"{value:.6g}") for value in values],
                "name": run if has_several_runs else column,
                "legendgroup": run if has_several_runs else column,
                "showlegend": not has_several_runs or is_first_of_run,
                "hovertemplate": f"{column} %{{y}}<br>step %{{x}}",
                "mode": "lines" if _is_line(column, steps) else "lines+markers",
                "line": {
                    "color": COLORS[color % len(COLORS)],
                    "width": 1.3 if is_training else 2,
                    "dash": "dot" if is_training and has_several_runs else "solid",
                },
                "marker": {"size": 5},
            }
        )
    return Chart(title, figure_json(traces, xaxis={"title": {"text": "step"}}))


def _is_line(column: str, steps: np.ndarray) -> bool:
    """Returns whether a curve needs no markers."""
    return column.startswith("train/") and len(steps) >= FEW_POINTS


def thinned(steps: np.ndarray, values: np.ndarray) -> Series:
    """Returns at most `MAX_POINTS` points: the minimum and the maximum of each interval."""
    if len(steps) <= MAX_POINTS:
        return steps, values
    extremes = set()
    for interval in np.array_split(np.arange(len(steps)), MAX_POINTS // 2):
        extremes |= {interval[np.argmin(values[interval])], interval[np.argmax(values[interval])]}
    indices = np.array(sorted(extremes))
    return steps[indices], values[indices]


def figure_json(traces: Sequence[dict[str, Any]], **layout: Any) -> str:
    """Returns a Plotly figure as JSON, after Plotly has checked it."""
    import plotly.graph_objects as go

    layout = {
        "template": "none",
        "margin": {"l": 52, "r": 8, "t": 8, "b": 40},
        "font": {"size": 11},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        "showlegend": len(traces) > 1,
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#888888", "activecolor": "#3b82f6"},
        **layout,
    }
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
    for number, (title, curves) in enumerate(charts, 1):
        axis = figure.add_subplot(num_rows, num_columns, number)
        axis.set_title(title)
        axis.grid(alpha=0.3)
        for number, (_, column, (steps, values)) in enumerate(curves):
            color = COLORS[number % len(COLORS)]
            marker = "" if _is_line(column, steps) else "."
            axis.plot(steps, values, marker=marker, color=color, label=column, linewidth=1)
        if len(curves) > 1:
            axis.legend(fontsize="small")
    figure.savefig(path, dpi=100)
