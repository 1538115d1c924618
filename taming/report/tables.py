"""Tables about runs: results, settings and evaluations."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from taming.report.page import Part, Section, Table, Text
from taming.report.records import RunRecord
from taming.runtime.nested import leaves

__all__ = ["as_text", "configurations", "duration", "evaluations", "overview"]

RESULT_TITLES = {
    "exported_step": "model of step",
    "metrics_step": "validated at step",
    "duration_seconds": "duration",
    "images_per_second": "images per second",
    "device": "device",
    "precision": "precision",
    "versions": "versions",
}
SETTING_TITLES = {
    "data.path": "data",
    "data.resolution": "resolution",
    "data.batch_size": "batch size",
    "trainer.max_steps": "planned steps",
    "seed": "seed",
}


def overview(runs: Sequence[RunRecord], facts: Sequence[dict[str, str]]) -> Table:
    """Returns a table with one column per run; `facts` are rows about model and data."""
    columns = []
    for run, run_facts in zip(runs, facts, strict=True):
        num_steps = max(run.result.get("step", 0), run.last_step)
        column = {**run_facts, "steps done": as_text(num_steps)}
        for key, title in RESULT_TITLES.items():
            if value := run.result.get(key):
                column[title] = duration(value) if key == "duration_seconds" else as_text(value)
        for key, title in SETTING_TITLES.items():
            if (value := run.setting(key)) is not None:
                column[title] = as_text(value)
        columns.append(column | {name: as_text(x) for name, x in run.last_metrics().items()})
    titles = dict.fromkeys(title for column in columns for title in column)
    rows = [[title, *(column.get(title, "–") for column in columns)] for title in titles]
    return Table(["", *(run.name for run in runs)], rows)


def configurations(runs: Sequence[RunRecord]) -> Section:
    """Returns each run's configuration, and a table of the settings that differ."""
    section = Section("Configuration")
    if len(runs) > 1:
        settings = [dict(leaves(run.config, lists=False)) for run in runs]
        names = dict.fromkeys(name for run_settings in settings for name in run_settings)
        rows = []
        for name in names:
            values = [run_settings.get(name, "–") for run_settings in settings]
            differs = len({json.dumps(value, default=str) for value in values}) > 1
            is_in_run_dir = all(str(r.setting("run_dir")) in str(r.setting(name)) for r in runs)
            if differs and not is_in_run_dir:
                rows.append([name, *map(as_text, values)])
        section.parts.append(Table(["different settings", *(run.name for run in runs)], rows))
    for run in runs:
        text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        section.by_run[run.name] = [Text(text, title=f"config.yaml of {run.name}")]
    return section


def evaluations(run: RunRecord) -> Iterator[Part]:
    """Yields the numbers of each metrics.json as tables, next to their protocol."""
    for path, numbers in run.evaluations.items():
        protocol = numbers.get("contract")
        side = None
        if isinstance(protocol, dict):
            rows = [[name, as_text(value)] for name, value in leaves(protocol, lists=False)]
            side = Table(("protocol", ""), rows)
        plain = [[k, as_text(v)] for k, v in numbers.items() if not isinstance(v, dict | list)]
        yield Table(("", ""), plain, f"{path}/metrics.json", side)
        for name, value in numbers.items():
            if name != "contract" and value:
                yield from _nested(name, value)


def _nested(name: str, value: Any) -> Iterator[Part]:
    """Yields a list of rows as a table, and a dictionary as a table of its leaves."""
    if isinstance(value, dict):
        row_lists = {k: v for k, v in value.items() if _is_rows(v)}
        plain = {k: v for k, v in value.items() if k not in row_lists}
        if rows := [[k, as_text(v)] for k, v in leaves(plain, lists=False)]:
            yield Table((name, ""), rows)
        for key, rows in row_lists.items():
            yield from _nested(f"{name}: {key}", rows)
    elif _is_rows(value):
        columns = dict.fromkeys(
            k for row in value for k, v in row.items() if not isinstance(v, list)
        )
        rows = [[as_text(row.get(key, "–")) for key in columns] for row in value]
        yield Table(list(columns), rows, name)
    elif isinstance(value, list):
        lines = map(str, value) if name == "notes" else [f"{name}: {as_text(value)}"]
        yield from map(Text, lines)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def duration(seconds: float) -> str:
    """Formats a duration: `1 h 05 min`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def as_text(value: Any) -> str:
    """Formats a value for a table cell."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {as_text(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(as_text, value))
    return str(value)
