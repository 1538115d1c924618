"""What users give Lightning's Trainer: its options, callbacks, loggers and strategies."""

import math
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from tiny_training import (
    STAGES,
    Run,
    TinyData,
    image_data,
    optimizer_config,
    run_training,
    stage,
    tiny_adversary,
    tiny_vqgan,
    token_data,
    transformer_training,
    vqgan_training,
)
from torch import distributed as dist
from torch import multiprocessing
from torch.distributed import fsdp

from taming.conditioning import ClassLabel
from taming.serialization import load_saved_model
from taming.training import WholeFileCheckpointIO
from taming.vqgan import VQGAN

Finished = Callable[..., Run]


@pytest.mark.parametrize("kind", STAGES)
def test_fast_dev_run_writes_nothing_and_breaks_nothing(finished: Finished, kind: str) -> None:
    directory = finished(kind).directory
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    run = run_training(directory, *stage(kind), fast_dev_run=True)
    assert run.result.step == 1 and run.result.metrics and run.recorder.rows == []
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert after == before


def test_a_profiler_writes_what_took_how_long(finished: Finished) -> None:
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
    images = data.val_dataset.tensors["images"][:3]
    with torch.no_grad():
        loss = (vqgan(images).reconstructions - images).abs().mean().item()
    assert result.metrics["val/pixel_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("kind", STAGES)
def test_bf16_and_float16_train_much_as_float32(
    tmp_path: Path, finished: Finished, kind: str
) -> None:
    # Lightning itself allows float16 on GPUs alone
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=2.0**32)
    plugins = [WholeFileCheckpointIO(), MixedPrecision("16-mixed", "cpu", scaler)]
    bf16 = run_training(tmp_path / "bf16", *stage(kind), precision="bf16-mixed")
    half = run_training(tmp_path / "half", *stage(kind), plugins=plugins, max_steps=24)
    assert all(math.isfinite(x) for _, row in half.recorder.rows for x in row.values())
    assert 2.0 < scaler.get_scale() < 2.0**24  # the first steps overflowed, and were skipped
    norms = [norm for _, norm in half.recorder.column("train/gradient_norm")]
    assert norms[0] == 0 and norms[-1] > 0
    name = "val/pixel_loss" if kind == "vqgan" else "val/loss"
    expected = finished(kind).result.metrics[name]
    assert bf16.result.metrics[name] == pytest.approx(expected, rel=0.05)
    assert half.result.metrics[name] == pytest.approx(expected, rel=0.15)


class Users(L.Callback):
    """A callback of a user's own."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *args: Any
    ) -> None:
        assert set(outputs) == {"loss"}
        reported = float(trainer.callback_metrics["train/loss"])
        self.seen.append((trainer.global_step, reported - float(outputs["loss"])))


def test_callbacks_of_a_users_own(tmp_path: Path) -> None:
    users = Users()
    # nothing gets better by so much: the second validation ends the training
    callbacks = [users, EarlyStopping("val/loss", min_delta=100.0, patience=1)]
    run = run_training(tmp_path, *stage("transformer"), callbacks=callbacks, val_check_interval=2)
    assert (run.result.step, run.result.exported_step, run.result.interrupted) == (4, 4, False)
    assert users.seen == [(step, 0.0) for step in range(1, 5)]
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
    run = run_training(tmp_path, *stage("transformer"), max_time={"microseconds": 1})
    assert (run.result.step, run.result.exported_step, run.result.interrupted) == (1, 1, False)
    assert run.result.metrics
    load_saved_model(tmp_path / "model")


# --- two processes ------------------------------------------------------------------------------


def exact(kind: str, batch_size: int) -> tuple[Any, TinyData]:
    """A training without random numbers, and with nothing that depends on how a batch is cut."""
    torch.manual_seed(0)
    optimizer = optimizer_config(schedule="constant", weight_decay=0.3)
    if kind == "vqgan":
        vqgan = tiny_vqgan(init="uniform")
        adversary = tiny_adversary("group", loss="vanilla", adaptive=False, optimizer=optimizer)
        return vqgan_training(adversary, vqgan, optimizer=optimizer), image_data(batch_size)
    module = transformer_training(ClassLabel(3), optimizer=optimizer)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module, token_data(batch_size)


class CountReductions(L.Callback):
    """Counts how often the ranks exchange each bucket of gradients."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        model: Any = trainer.model
        model.register_comm_hook(self.buckets, self.reduce)

    @staticmethod
    def reduce(
        buckets: Counter[int], bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        buckets[bucket.index()] += 1
        summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return summed.then(lambda done: done.value()[0] / 2)


class OnCPU(fsdp.FullyShardedDataParallel):
    """PyTorch splits weights among CPUs only when it is told the device, and Lightning does not."""

    def __init__(self, *args: Any, device_id: Any, **settings: Any) -> None:
        super().__init__(*args, device_id=torch.device("cpu"), **settings)


class CPUStrategy(FSDPStrategy):
    """Lightning's Trainer refuses the class itself on a CPU."""


def on_rank(rank: int, folder: str, port: int) -> None:
    """Trains as one of two processes that `torchrun` has started."""
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    places |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ["TORCHELASTIC_RUN_ID"] = "test"
    results = {}
    for kind in STAGES:
        counting = CountReductions()
        run = run_training(
            Path(folder, kind),
            *exact(kind, 1),
            max_steps=5,
            accumulate_grad_batches=2,
            val_check_interval=6,
            devices=2,
            strategy=DDPStrategy(find_unused_parameters=kind == "vqgan"),
            callbacks=[counting],
        )
        results[kind] = (run.recorder.rows, set(counting.buckets.values()))
    fsdp.FullyShardedDataParallel = OnCPU
    changes = {"ema_decay": None, "max_steps": 5, "devices": 2}
    strategy = CPUStrategy(process_group_backend="gloo", state_dict_type="full")
    directory = Path(folder, "fsdp")
    run = run_training(directory, *exact("transformer", 2), strategy=strategy, **changes)
    results["fsdp"] = (run.recorder.rows, None)
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """With a part of each batch, accumulation, and weights split among them and put together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(on_rank, (str(tmp_path), port), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    for name in (*STAGES, "fsdp"):
        alone = tmp_path / f"{name}_alone"
        stage_2 = "transformer" if name == "fsdp" else name
        changes = {"max_steps": 5, "ema_decay": None if name == "fsdp" else 0.9}
        recorder = run_training(alone, *exact(stage_2, 4), **changes).recorder
        rows, reductions = ranks[0][name]
        assert reductions == ranks[1][name][1] == (None if name == "fsdp" else {5})
        assert [step for step, _ in rows] == [step for step, _ in recorder.rows]
        for (_, found), (_, expected) in zip(rows, recorder.rows, strict=True):
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
        one, two = (load_saved_model(path / "model") for path in (alone, tmp_path / name))
        part = "transformer" if name != "vqgan" else None
        states = [(saved.parts[part] if part else saved).state for saved in (one, two)]
        for weight, value in states[0].items():
            if value.ndim < 2:  # where the gradient is all but zero, Adam's steps are rounding
                continue
            torch.testing.assert_close(states[1][weight], value, rtol=1e-3, atol=1e-4)
