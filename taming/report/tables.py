"""What a run was, as tables: how it went, its settings, its evaluations."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from taming.report.page import Part, Section, Table, Text
from taming.report.records import RunRecord
from taming.runtime.nested import leaves

__all__ = ["as_text", "configurations", "duration", "evaluations", "last_metrics", "overview"]

RESULT_ROWS = {  # of result.json; older files lack some
    "exported_step": "model of step",
    "metrics_step": "validated at step",
    "duration_seconds": "duration",
    "images_per_second": "images per second",
    "device": "device",
    "precision": "precision",
    "versions": "versions",
}
SHOWN_SETTINGS = {
    "data.path": "data",
    "data.resolution": "resolution",
    "data.batch_size": "batch size",
    "trainer.max_steps": "planned steps",
    "seed": "seed",
}


def overview(runs: Sequence[RunRecord], about: Sequence[dict[str, str]]) -> Table:
    """Returns how the runs went, a column each; `about` is what is known of model and data."""
    columns = []
    for run, more in zip(runs, about, strict=True):
        column = {**more, "steps done": as_text(run.result.get("step", run.last_step))}
        for key, title in RESULT_ROWS.items():
            if value := run.result.get(key):
                column[title] = duration(value) if key == "duration_seconds" else as_text(value)
        for key, title in SHOWN_SETTINGS.items():
            if (value := run.setting(key)) is not None:
                column[title] = as_text(value)
        columns.append(column | {name: as_text(x) for name, x in last_metrics(run).items()})
    titles = dict.fromkeys(title for column in columns for title in column)
    rows = [[title, *(column.get(title, "–") for column in columns)] for title in titles]
    return Table(["", *(run.name for run in runs)], rows)


def last_metrics(run: RunRecord) -> dict[str, float]:
    """Returns the validation's numbers: those of the model, or the latest of a run that goes on."""
    found = run.result.get("metrics")
    if found:
        return dict(found)
    return {name: s[1][-1].item() for name, s in run.metrics.items() if name.startswith("val/")}


def configurations(runs: Sequence[RunRecord]) -> Section:
    """Returns the settings of each run, and of several those that differ."""
    section = Section("Configuration")
    if len(runs) > 1:
        settings = [dict(leaves(run.config, lists=False)) for run in runs]
        names = dict.fromkeys(name for one in settings for name in one)
        rows = [
            [name, *(as_text(one.get(name, "–")) for one in settings)]
            for name in names
            if len({json.dumps(one.get(name, "–"), default=str) for one in settings}) > 1
            and not all(str(run.setting("run_dir")) in str(run.setting(name)) for run in runs)
        ]
        section.parts.append(Table(["what differs", *(run.name for run in runs)], rows))
    for run in runs:
        text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        section.by_run[run.name] = [Text(text, title=f"config.yaml of {run.name}")]
    return section


def evaluations(run: RunRecord) -> Iterator[Part]:
    """Yields the numbers of each metrics.json as tables, their contract beside them."""
    for place, numbers in run.evaluations.items():
        contract = numbers.get("contract")
        side = None
        if isinstance(contract, dict):
            rows = [[name, as_text(value)] for name, value in leaves(contract, lists=False)]
            side = Table(("contract", ""), rows)
        plain = [[k, as_text(v)] for k, v in numbers.items() if not isinstance(v, dict | list)]
        yield Table(("", ""), plain, f"{place}/metrics.json", side)
        for name, value in numbers.items():
            if name != "contract" and value:
                yield from _nested(name, value)


def _nested(name: str, value: Any) -> Iterator[Part]:
    """Yields what is not a plain number: a list of rows as a table, a dictionary by its leaves."""
    if isinstance(value, dict):
        lists = {k: v for k, v in value.items() if _is_rows(v)}
        others = {k: v for k, v in value.items() if k not in lists}
        rows = [[k, as_text(v)] for k, v in leaves(others, lists=False)]
        if rows:
            yield Table((name, ""), rows)
        for key, found in lists.items():
            yield from _nested(f"{name}: {key}", found)
    elif _is_rows(value):
        columns = dict.fromkeys(
            key for row in value for key, found in row.items() if not isinstance(found, list)
        )
        rows = [[as_text(row.get(key, "–")) for key in columns] for row in value]
        yield Table(list(columns), rows, name)
    elif isinstance(value, list):
        lines = map(str, value) if name == "notes" else [f"{name}: {as_text(value)}"]
        yield from map(Text, lines)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def duration(seconds: float) -> str:
    """Returns a duration as people say it: `1 h 05 min`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def as_text(value: Any) -> str:
    """Returns a value as a cell of a table."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {as_text(found)}" for name, found in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(as_text, value))
    return str(value)
