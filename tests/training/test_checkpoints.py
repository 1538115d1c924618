"""Checkpoints are of one moment, come in order, and say what time they took."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_training import run_training, stage

from taming.training import IntervalCheckpoint, SavingShare, WholeFileCheckpointIO
from taming.training.checkpoints import copied_to_host


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written before the event is set."""
    free, save = threading.Event(), torch.save

    def waits(*arguments: Any) -> None:
        assert free.wait(60)
        save(*arguments)

    monkeypatch.setattr(torch, "save", waits)
    yield free
    free.set()


def test_a_checkpoint_is_of_the_moment_of_its_saving(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    weight, counts = torch.arange(6.0).view(2, 3).t(), {"loss": 1}
    checkpoint = {"weights": [weight, weight[1:]], "counts": counts, "step": 5, "none": None}
    files = WholeFileCheckpointIO()
    files.save_checkpoint(checkpoint, tmp_path / "last.ckpt")
    weight.zero_()  # the next step
    counts["loss"] = 2
    assert not (tmp_path / "last.ckpt").exists()
    slow_disk.set()
    files.teardown()
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    first, second = saved.pop("weights")
    assert saved == {"counts": {"loss": 1}, "step": 5, "none": None}
    assert torch.equal(first, torch.arange(6.0).view(2, 3).t()) and torch.equal(second, first[1:])
    assert first.stride() == (1, 3)  # the memory format
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()  # once


def test_the_copy_is_no_part_of_the_training() -> None:
    tensors = [torch.zeros(2, requires_grad=True), torch.zeros(0), torch.ones((), dtype=torch.bool)]
    copies = copied_to_host({"tensors": tensors})["tensors"]
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(tensor, copy) and copy.dtype == tensor.dtype and not copy.requires_grad
        assert tensor.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


def test_two_copies_wait_at_most_and_files_come_in_order(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    files, paths = WholeFileCheckpointIO(), [tmp_path / f"{step}.ckpt" for step in range(3)]
    for step in (0, 1):
        files.save_checkpoint({"step": step}, paths[step])
    third = threading.Thread(target=files.save_checkpoint, args=({"step": 2}, paths[2]))
    third.start()
    third.join(0.05)
    assert third.is_alive()  # memory is not for any number of copies
    slow_disk.set()
    third.join(60)
    files.remove_checkpoint(paths[2])  # only after it is there
    files.teardown()
    assert [path.exists() for path in paths] == [True, True, False]
    assert files.failures == {} and files.seconds > 0.05
    files.save_checkpoint({"step": 4}, paths[2])  # a training may follow
    assert files.load_checkpoint(paths[2], weights_only=True) == {"step": 4}
    files.teardown()


def test_what_cannot_be_saved_at_all_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise TypeError("cannot pickle")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(TypeError, match="cannot pickle"):
        run_training(tmp_path, *stage("transformer"))


def test_minutes_end_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[dict[str, Any]] = []
    monkeypatch.setattr(
        WholeFileCheckpointIO, "_write", lambda self, checkpoint, path: saved.append(checkpoint)
    )
    timed = IntervalCheckpoint(minutes=1e-9, dirpath=tmp_path, filename="timed")
    changes: dict[str, Any] = {"accumulate_grad_batches": 3, "val_check_interval": 100}
    run_training(tmp_path, *stage("transformer"), callbacks=[timed], **changes)
    assert [checkpoint["global_step"] for checkpoint in saved] == [*range(1, 9), 8, 8]
    # no batch of a step that has not ended; the sums of step 2, say, are in its report
    assert all(not checkpoint["since_report"]["counts"] for checkpoint in saved)


def test_several_ranks_look_at_the_clock_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask(self: ModelCheckpoint, trainer: Any, *arguments: Any) -> None:
        asked.append(trainer.global_step)

    monkeypatch.setattr(ModelCheckpoint, "on_train_batch_end", ask)
    timed = IntervalCheckpoint(minutes=1)
    for index in range(100):
        trainer: Any = SimpleNamespace(
            world_size=2, accumulate_grad_batches=2, global_step=(index + 1) // 2
        )
        timed.on_train_batch_end(trainer, None, None, None, index)  # type: ignore[arg-type]
    assert asked == [20, 40]


@pytest.mark.parametrize("large", [False, True])
def test_the_share_of_saving_is_in_the_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    large: bool,
) -> None:
    save: Callable[..., None] = WholeFileCheckpointIO.save_checkpoint

    def slow(self: WholeFileCheckpointIO, *arguments: Any, **options: Any) -> None:
        save(self, *arguments, **options)
        self.seconds += 1000 if large else 0

    monkeypatch.setattr(WholeFileCheckpointIO, "save_checkpoint", slow)
    run = run_training(tmp_path, *stage("transformer"), callbacks=[SavingShare()])
    shares = [share for _, share in run.recorder.column("train/saving_share")]
    assert len(shares) == 8 and shares[:3] == [0, 0, 0]  # the first is saved after step 3
    assert all((share > 1) if large else (0 < share < 1) for share in shares[3:])
    said = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len([message for message in said if "went into saving checkpoints" in message]) == large
