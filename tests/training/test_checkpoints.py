"""Checkpoints are of one moment, come in order, and say what time they took."""

import io
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from tiny_training import Run, run_training, stage

from taming.training import (
    Clock,
    IntervalCheckpoint,
    LastCheckpoint,
    SavingShare,
    WholeFileCheckpointIO,
    data_parallel,
    strategies,
)
from taming.training.stopping import TrainingInterrupted


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written before the event is set."""
    free, write = threading.Event(), WholeFileCheckpointIO._write

    def waits(*arguments: Any) -> None:
        assert free.wait(60)
        write(*arguments)

    monkeypatch.setattr(WholeFileCheckpointIO, "_write", waits)
    yield free
    free.set()


def test_later_steps_do_not_change_a_queued_checkpoint(
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


def test_at_most_two_checkpoints_are_queued_and_written_in_order(
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


def test_interval_checkpoints_come_between_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[dict[str, Any]] = []

    def read(self: WholeFileCheckpointIO, content: io.BytesIO, path: Path) -> None:
        saved.append(torch.load(io.BytesIO(content.getbuffer()), weights_only=True))

    monkeypatch.setattr(WholeFileCheckpointIO, "_write", read)
    timed = IntervalCheckpoint(minutes=1e-9, dirpath=tmp_path, filename="timed")
    changes: dict[str, Any] = {"accumulate_grad_batches": 3, "val_check_interval": 100}
    run_training(tmp_path, *stage("transformer"), callbacks=[timed], **changes)
    assert [checkpoint["global_step"] for checkpoint in saved] == [*range(1, 9), 8, 8]
    # no batch of a step that has not ended; the sums of step 2, say, are in its report
    assert all(not checkpoint["since_report"]["counts"] for checkpoint in saved)


@pytest.mark.parametrize(
    ("world_size", "error", "saves"),
    [
        (1, RuntimeError("out of memory"), True),
        (2, RuntimeError("out of memory"), False),
        (2, TrainingInterrupted(2), True),
    ],
)
def test_a_failed_rank_does_not_save(
    monkeypatch: pytest.MonkeyPatch, world_size: int, error: Exception, saves: bool
) -> None:
    saved: list[Any] = []
    monkeypatch.setattr(ModelCheckpoint, "on_exception", lambda _, *args: saved.append(args))
    trainer = SimpleNamespace(world_size=world_size)
    LastCheckpoint(save_on_exception=True).on_exception(trainer, None, error)
    assert bool(saved) == saves


@pytest.mark.parametrize(
    ("callback", "base", "method"),
    [
        (IntervalCheckpoint(minutes=1), ModelCheckpoint, "on_train_batch_end"),
        (Clock("00:01:00:00"), Clock, "_stop_in_time"),
    ],
)
@pytest.mark.parametrize(("world_size", "expected"), [(1, [*range(1, 51)]), (2, [20, 40])])
def test_time_is_checked_between_steps(
    monkeypatch: pytest.MonkeyPatch, callback: Callback, base: type[Callback], method: str,
    world_size: int, expected: list[int],
) -> None:  # fmt: skip
    """Several ranks look at it together, and seldom."""
    steps: list[int] = []

    def look(self: Callback, trainer: Any, *arguments: Any) -> None:
        steps.append(trainer.global_step)

    monkeypatch.setattr(base, method, look)
    for index in range(100):
        trainer: Any = SimpleNamespace(
            world_size=world_size, accumulate_grad_batches=2, global_step=(index + 1) // 2
        )
        callback.on_train_batch_end(trainer, None, None, {"images": [0]}, index)
    assert steps == expected


def test_share_of_saving_is_logged(tmp_path: Path) -> None:
    run = run_training(tmp_path, *stage("transformer"), callbacks=[SavingShare()])
    shares = [share for _, share in run.recorder.column("train/saving_share")]
    assert len(shares) == 8 and shares[:3] == [0, 0, 0]  # the first is saved after step 3
    assert all(0 < share < 1 for share in shares[3:])


def test_no_process_waits_for_a_failed_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> None:
        raise PermissionError("not yours")

    strategy, path = strategies.ShardedStrategy(), tmp_path / "last.ckpt"
    files = strategy.checkpoint_io = WholeFileCheckpointIO()
    monkeypatch.setattr(strategies, "remove", fails)
    monkeypatch.setattr(strategies, "save_sharded_checkpoint", lambda *_: pytest.fail("waits"))
    strategy.save_checkpoint({}, path)
    assert "not yours" in files.failures[path]


def test_processes_wait_a_day_for_the_first() -> None:
    for strategy in (data_parallel(discriminator=False), strategies.ShardedStrategy()):
        assert strategy._timeout == timedelta(days=1)


class BestTwo(ModelCheckpoint):
    """Keeps the checkpoints of the two best validations."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir / "checkpoints", "{step}", "val/loss", save_top_k=2)


@pytest.mark.parametrize("place", ["outside", "up", "linked", "directory"])
def test_a_resumed_run_deletes_only_its_own_checkpoints(
    tmp_path: Path, finished: Callable[..., Run], place: str
) -> None:
    """Whoever wrote the checkpoint chose the paths in it."""
    run, precious = tmp_path / "run", tmp_path / "precious.ckpt"
    shutil.copytree(finished("transformer").directory, run)
    (precious / "photos").mkdir(parents=True)
    saved = run / "checkpoints"
    (saved / "link").symlink_to(tmp_path)
    path = {
        "outside": str(precious),
        "up": f"{saved}/../../precious.ckpt",
        "linked": f"{saved}/link/precious.ckpt",
        "directory": str(saved / "mine"),  # in its place, but no checkpoint
    }[place]
    (saved / "mine").mkdir()
    callback = BestTwo(run)
    callback.best_k_models = {path: torch.tensor(1e9), path + "x": torch.tensor(2e9)}
    callback.best_model_path = callback.last_model_path = callback.kth_best_model_path = path
    content = torch.load(saved / "last.ckpt", weights_only=True)
    keys = [key for key in content["callbacks"] if "Checkpoint" in key]
    for key in (callback.state_key, *keys):
        content["callbacks"][key] = callback.state_dict() | {"dirpath": str(saved)}
    torch.save(content, saved / "last.ckpt")
    run_training(run, *stage("transformer"), resume=True, max_steps=11, callbacks=[BestTwo(run)])
    assert (precious / "photos").is_dir() and (saved / "mine").is_dir()


def test_a_moved_run_keeps_its_best_checkpoints(tmp_path: Path) -> None:
    losses = iter([3.0, 1.0, 2.0, 4.0, 1.5])  # after steps 1, 2, 3, 4 and 5
    for name, steps in (("here", 3), ("there", 5)):
        module, data = stage("transformer")
        log = module.log_validation
        module.log_validation = lambda numbers, log=log: log({**numbers, "loss": next(losses)})
        changes: dict[str, Any] = {"max_steps": steps, "val_check_interval": 1}
        run = tmp_path / name
        result = run_training(run, module, data, resume=name == "there", export="best",
                              callbacks=[BestTwo(run)], **changes).result  # fmt: skip
        assert result.exported_step == 2
        if name == "here":
            run.rename(tmp_path / "there")
    names = {path.name for path in (tmp_path / "there" / "checkpoints").glob("step=*")}
    assert names == {"step=2.ckpt", "step=5.ckpt"}
