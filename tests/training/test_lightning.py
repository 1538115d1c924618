"""What users give Lightning's Trainer: its options, callbacks, loggers and strategies."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins import MixedPrecision
from tiny_training import STAGES, Run, run_training, stage

from taming.serialization import load_saved_model
from taming.tokenizer import VQGAN
from taming.training import Clock, TrainingModule, WholeFileCheckpointIO

Finished = Callable[..., Run]


@pytest.mark.parametrize("kind", STAGES)
def test_fast_dev_run_writes_nothing_and_breaks_nothing(
    finished: Finished, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingModule, "to_saved", None)  # split weights need all processes
    directory = finished(kind).directory
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    run = run_training(directory, *stage(kind), fast_dev_run=True)
    assert run.result.step == 1 and run.result.metrics and run.recorder.rows == []
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert after == before


def test_a_profiler_writes_durations(finished: Finished) -> None:
    text = (finished("vqgan").directory / "fit-profile.txt").read_text()
    for part in ("VQGANTraining.configure_gradient_clipping", "run_training_batch", "WarmEMA"):
        assert part in text


@pytest.mark.parametrize("limit", [0, 1])
def test_limit_val_batches(tmp_path: Path, limit: int) -> None:
    module, data = stage("vqgan")
    result = run_training(tmp_path, module, data, max_steps=2, limit_val_batches=limit).result
    vqgan = VQGAN.from_pretrained(tmp_path / "model")
    assert torch.equal(vqgan.last_layer, module.vqgan.last_layer)  # Lightning ends with averages
    assert result.exported_step == 2
    if limit == 0:
        assert result.metrics == {} and not (tmp_path / "checkpoints").exists()
        return
    images = next(iter(data.val_dataloader()))["images"]
    with torch.no_grad():
        loss = (vqgan(images).reconstructions - images).abs().mean().item()
    assert result.metrics["val/pixel_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("kind", STAGES)
def test_other_precisions_train_like_float32(tmp_path: Path, finished: Finished, kind: str) -> None:
    # Lightning itself allows float16 on GPUs alone
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=2.0**32)
    plugins = [WholeFileCheckpointIO(), MixedPrecision("16-mixed", "cpu", scaler)]
    bf16 = run_training(tmp_path / "bf16", *stage(kind), precision="bf16-mixed")
    double = run_training(tmp_path / "double", *stage(kind), precision="64-true")
    half = run_training(tmp_path / "half", *stage(kind), plugins=plugins, max_steps=24)
    assert all(math.isfinite(x) for _, row in half.recorder.rows for x in row.values())
    assert 2.0 < scaler.get_scale() < 2.0**24  # the first steps overflowed, and were skipped
    norms = [norm for _, norm in half.recorder.column("train/gradient_norm")]
    assert norms[0] == 0 and norms[-1] > 0
    name = "val/pixel_loss" if kind == "vqgan" else "val/loss"
    expected = finished(kind).result.metrics[name]
    assert bf16.result.metrics[name] == pytest.approx(expected, rel=0.05)
    assert double.result.metrics[name] == pytest.approx(expected, rel=1e-3)
    assert half.result.metrics[name] == pytest.approx(expected, rel=0.15)


def test_an_unused_gpu_gives_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning warns of a GPU that is not used, and warnings fail tests."""
    monkeypatch.setattr(CUDAAccelerator, "is_available", lambda: True)
    L.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)


class Users(L.Callback):
    """A callback of a user's own."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, float]] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *args: Any
    ) -> None:
        assert set(outputs) == {"loss"}
        reported = float(trainer.callback_metrics["train/loss"])
        self.batches.append((trainer.global_step, reported - float(outputs["loss"])))


def test_custom_callbacks(tmp_path: Path) -> None:
    users = Users()
    # nothing gets better by so much: the second validation ends the training
    callbacks = [users, EarlyStopping("val/loss", min_delta=100.0, patience=1)]
    run = run_training(tmp_path, *stage("transformer"), callbacks=callbacks, val_check_interval=2)
    assert (run.result.step, run.result.exported_step, run.result.interrupted) == (4, 4, False)
    assert users.batches == [(step, 0.0) for step in range(1, 5)]
    load_saved_model(tmp_path / "model")


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.filterwarnings("ignore")  # of TensorBoard's reader
def test_tensorboard_and_csv_at_once(finished: Finished, kind: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = finished(kind)
    events = EventAccumulator(str(run.directory / "board")).Reload()
    name = "val/pixel_loss" if kind == "vqgan" else "val/loss"
    assert [event.step for event in events.Scalars(name)] == [3, 6, 8]
    assert events.Scalars(name)[-1].value == pytest.approx(run.result.metrics[name])
    assert [event.step for event in events.Scalars("train/gradient_norm")] == list(range(1, 9))
    pictures = events.Images("val/reconstructions" if kind == "vqgan" else "val/samples")
    assert [picture.step for picture in pictures] == [3, 6, 8]
    assert pictures[0].encoded_image_string.startswith(b"\x89PNG")
    assert (run.directory / "csv" / "metrics.csv").read_text().count("\n") > 8


def test_max_time_ends_the_run_whole(tmp_path: Path) -> None:
    run = run_training(tmp_path, *stage("transformer"), callbacks=[Clock({"microseconds": 1})])
    assert (run.result.step, run.result.exported_step, run.result.interrupted) == (1, 1, False)
    assert run.result.metrics
    load_saved_model(tmp_path / "model")


def test_max_time_includes_the_last_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = SimpleNamespace(
        world_size=1, accumulate_grad_batches=1, global_step=1, should_stop=False
    )
    trainer.strategy = SimpleNamespace(broadcast=lambda ends: ends)
    batch = {"images": torch.zeros(4, 1)}

    def at(second: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: second)

    def step(clock: Clock, second: float) -> bool:
        at(second)
        clock.on_train_batch_end(trainer, None, None, batch, 0)
        return trainer.should_stop

    def validate(clock: Clock, start: float, end: float) -> bool:
        at(start)
        clock.on_validation_start(trainer, None)
        at(end)
        clock.on_validation_end(trainer, None)
        return trainer.should_stop

    clock = Clock("00:00:01:00")
    at(0.0)
    clock.on_train_start(trainer, None)
    assert not step(clock, 20.0)
    assert not validate(clock, 21.0, 36.0)
    assert not step(clock, 44.0)
    assert step(clock, 45.0)  # the 15 seconds that are left are those of a validation
    clock.on_train_end(trainer, None)
    assert clock.images_per_second == pytest.approx(3 * 4 / (45 - 15))

    resumed = Clock("00:00:01:00")
    resumed.load_state_dict(clock.state_dict())
    at(100.0)
    trainer.should_stop = False
    resumed.on_train_start(trainer, None)
    assert not step(resumed, 103.0)
    assert resumed.time_elapsed() == 48
    assert validate(resumed, 103.0, 110.0)  # at 55: not followed by another one
