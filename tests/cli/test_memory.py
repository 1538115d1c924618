"""What is said before memory or disk run out, and when they have."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from tiny_commands import TINY_VQGAN, Outcome, Run, fails

from taming.training import memory
from taming.training.strategies import ShardedStrategy


class OutOfMemory(L.Callback):
    """Stands for a GPU that is full in the second step."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee …")


@pytest.fixture
def train(run: Run, folder_overrides: tuple[str, ...]) -> Callable[..., Outcome]:
    settings = (*folder_overrides, *TINY_VQGAN, "perceptual=none", "run_dir=run")
    return lambda *overrides: run("train_vqgan", *settings, *overrides)


def test_a_full_gpu_is_told_with_the_settings_that_take_less(train: Callable[..., Outcome]) -> None:
    outcome = train(f"+callbacks.full._target_={__name__}.OutOfMemory")
    advice = "data.batch_size=2 trainer.accumulate_grad_batches=2"
    fails(outcome, "Tried to allocate 2 GiB", advice, "checkpointing=true", "resume=run")
    needed = re.search(r"up to ([\d.]+) MiB of disk space for checkpoints", outcome.err)
    assert needed is not None
    size = Path("run/checkpoints/last.ckpt").stat().st_size / 2**20
    assert float(needed[1]) == pytest.approx(4 * size, rel=0.1)


@pytest.mark.parametrize(
    ("memory", "disk", "message"),
    [
        (2**10, 2**40, "of 0.0 MiB of memory.*Make the model smaller"),
        (2**40, 2**10, "\\(0.0 MiB free\\), too little for one checkpoint"),
    ],
)
def test_what_cannot_work_ends_before_it_begins(
    train: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
    memory: int,
    disk: int,
    message: str,
) -> None:
    monkeypatch.setattr("taming.training.memory._memory_of", lambda device: memory)
    usage = SimpleNamespace(free=disk)
    monkeypatch.setattr(
        "taming.training.memory.shutil", SimpleNamespace(disk_usage=lambda path: usage)
    )
    outcome = train()
    fails(outcome)
    assert re.search(message, outcome.err)
    assert not Path("run").exists()


def test_what_may_be_too_much_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taming.training.memory._memory_of", lambda device: 300)
    trainer = L.Trainer(accelerator="cpu", devices=1, logger=False)
    memory.check_room(torch.nn.Linear(20, 5, bias=False), trainer, tmp_path, 2)  # type: ignore[arg-type]
    assert "Make the model smaller" in caplog.text  # 400 bytes, or half of it


@pytest.mark.parametrize(("precision", "expected"), [("32-true", "8.0"), ("bf16-mixed", "6.0")])
def test_split_weights_are_whole_during_a_step(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    precision: str,
    expected: str,
) -> None:
    monkeypatch.setattr(ShardedStrategy, "root_device", torch.device("cpu"))
    trainer: Any = SimpleNamespace(
        callbacks=[], strategy=ShardedStrategy(), world_size=2, precision=precision
    )
    module: Any = torch.nn.Linear(512, 1024, bias=False)  # 2 MiB; with gradient and moments 8
    with caplog.at_level("INFO", "taming"):
        memory.check_room(module, trainer, tmp_path, 2)
    assert f"needs {expected} MiB of" in caplog.text


def test_a_place_that_cannot_be_written_to(train: Callable[..., Outcome]) -> None:
    Path("file").touch()
    fails(train("run_dir=file/run"), "Not a directory: 'file/run'")
