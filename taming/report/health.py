"""Findings about the health of a run, from its metrics and its result."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from taming.report.page import Finding
from taming.report.records import RunRecord
from taming.report.tables import duration
from taming.training import HealthWatch, OverfittingWatch

__all__ = ["LOW_PSNR", "findings"]

LOW_PSNR = 20.0  # dB; reconstructions below it look blurred
WATCHES = {f"taming.training.{watch.__name__}": watch for watch in (HealthWatch, OverfittingWatch)}


def findings(run: RunRecord, advice: str = "") -> list[Finding]:
    """Returns the findings about a run; `advice` is the quantizer's, against a collapse."""
    results = [*_ending(run), *_metrics(run)]
    for name, settings in (run.setting("callbacks") or {}).items():
        watch = WATCHES.get(str((settings or {}).get("_target_")))
        if watch is not None:
            arguments = {key: settings[key] for key in settings if key != "_target_"}
            results += _replay(run, watch(**arguments), advice or f"See callbacks.{name}.")
    return results


def _ending(run: RunRecord) -> Iterator[Finding]:
    """Reports an unfinished or interrupted run, and a model that is not of the last step."""
    steps, result = run.setting("trainer.max_steps"), run.result
    planned = steps if isinstance(steps, int) else -1  # -1: no limit
    of_planned = f" of {planned:,}" if planned > 0 else ""
    step = result.get("step", run.last_step)
    exported = result.get("exported_step", step)
    if not run.is_finished:
        text = f"The run has not finished. Its last step is {run.last_step:,}{of_planned}."
        yield Finding(text, "note")
        if result:
            text = f"The model is from step {exported:,}, before the run was resumed."
            yield Finding(text, "note")
        return
    if result.get("interrupted") or step < planned:
        yield Finding(f"The training stopped after step {step:,}{of_planned}.", "note")
    if exported < step:
        text = f"The model is from step {exported:,}, the best. The last step is {step:,}."
        yield Finding(text, "note")
    validated = result.get("metrics_step")
    if validated is not None and validated != exported:
        text = f"The metrics are from step {validated:,}, the model is from step {exported:,}."
        yield Finding(text, "note")
    seconds, saving = result.get("duration_seconds"), run.metrics.get("train/saving_share")
    if seconds and saving and saving[1][-1] > 0.1:
        share = f"{saving[1][-1]:.0%} of the training's {duration(seconds)}"
        yield Finding(f"Saving checkpoints took {share}. Save less often.")


def _metrics(run: RunRecord) -> Iterator[Finding]:
    """Reports metrics that are not finite, and bad reconstructions."""
    for column, (steps, values) in run.metrics.items():
        if not np.isfinite(values).all():
            first = steps[~np.isfinite(values)][0]
            yield Finding(f"{column} is not a finite number at step {first:,} for the first time.")
    psnr = run.last_metrics().get("val/psnr")
    if psnr is not None and psnr < LOW_PSNR:
        yield Finding(
            f"Reconstructions are below {LOW_PSNR:.0f} dB: the PSNR on validation images is "
            f"{psnr:.1f} dB. Train longer, or use more codes or a smaller downsample factor."
        )


def _replay(run: RunRecord, watch: Any, advice: str) -> Iterator[Finding]:
    """Yields the warnings of a training callback by giving it the logged metrics again."""
    rows: dict[int, dict[str, float]] = {}
    for column, (steps, values) in run.metrics.items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            rows.setdefault(step, {})[column] = value
    for step, row in sorted(rows.items()):
        warnings: list[str | None] = []
        if isinstance(watch, HealthWatch) and "train/gradient_norm" in row:
            train = {k.removeprefix("train/"): v for k, v in row.items() if k.startswith("train/")}
            warnings += watch.check(train, advice)
        elif isinstance(watch, OverfittingWatch) and "val/gap" in row:
            val_loss = row["val/loss"]
            warnings.append(watch.check(step, val_loss - row["val/gap"], val_loss))
        yield from (Finding(f"Step {step:,}: {text}") for text in warnings if text)
