"""What is wrong with a run, in plain words: what its training warned of, and what its end shows."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from taming.report.page import Finding
from taming.report.records import RunRecord
from taming.report.tables import duration
from taming.training import HealthWatch, OverfittingWatch

__all__ = ["findings"]

WATCHES = {
    "taming.training.HealthWatch": HealthWatch,
    "taming.training.OverfittingWatch": OverfittingWatch,
}


def findings(run: RunRecord, advice: str = "") -> list[Finding]:
    """Returns what the numbers of a run say about its health; `advice` is the quantizer's."""
    found = [*_end(run), *_numbers(run)]
    for name, settings in (run.setting("callbacks") or {}).items():
        watch = WATCHES.get(str((settings or {}).get("_target_")))
        if watch is not None:
            arguments = {key: settings[key] for key in settings if key != "_target_"}
            found += _replayed(run, watch(**arguments), advice or f"See callbacks.{name}.")
    return found


def _end(run: RunRecord) -> Iterator[Finding]:
    """Says how the run ended, where it did not simply reach its last step."""
    steps, result = run.setting("trainer.max_steps"), run.result
    planned = steps if isinstance(steps, int) else -1  # until told to end
    of_planned = f" of {planned:,}" if planned > 0 else ""
    if not result:
        text = f"The run has not ended: step {run.last_step:,}{of_planned} is the latest."
        yield Finding(text, "note")
        return
    step = result.get("step", run.last_step)
    exported = result.get("exported_step", step)
    if result.get("interrupted") or step < planned:
        yield Finding(f"The training was ended after step {step:,}{of_planned}.", "note")
    if exported < step:
        yield Finding(f"The model is of step {exported:,}, the best; the last is {step:,}.", "note")
    measured = result.get("metrics_step")
    if measured is not None and measured != exported:
        text = f"The numbers are of step {measured:,}, the model of step {exported:,}."
        yield Finding(text, "note")
    seconds, saving = result.get("duration_seconds"), run.metrics.get("train/saving_share")
    if seconds and saving and saving[1][-1] > 0.1:
        yield Finding(
            f"Saving took {saving[1][-1]:.0%} of the training's {duration(seconds)}: save less "
            "often.",
        )


def _numbers(run: RunRecord) -> Iterator[Finding]:
    """Names numbers that are not finite."""
    for column, (steps, values) in run.metrics.items():
        if not np.isfinite(values).all():
            first = steps[~np.isfinite(values)][0]
            yield Finding(f"{column} is not a finite number at step {first:,}, for the first time.")


def _replayed(run: RunRecord, watch: Any, cure: str) -> Iterator[Finding]:
    """Yields the warnings that a watch gave in training: it is shown the same numbers again."""
    rows: dict[int, dict[str, float]] = {}
    for column, (steps, values) in run.metrics.items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            rows.setdefault(step, {})[column] = value
    for step, row in sorted(rows.items()):
        warnings: list[str | None] = []
        if isinstance(watch, HealthWatch) and "train/gradient_norm" in row:
            train = {k.removeprefix("train/"): v for k, v in row.items() if k.startswith("train/")}
            warnings += watch.check(train, cure)
        elif isinstance(watch, OverfittingWatch) and "val/gap" in row:
            val_loss = row["val/loss"]
            warnings.append(watch.check(step, val_loss - row["val/gap"], val_loss))
        yield from (Finding(f"Step {step:,}: {text}") for text in warnings if text)
