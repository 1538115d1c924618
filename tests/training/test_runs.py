"""Whole runs of both stages: steps, checkpoints, resuming and ending."""

import io
import json
import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import MAX_STEPS, SETTINGS, STAGES, Run, optimizer_config, run_training, stage
from torch.utils._pytree import tree_flatten

from taming.runtime.errors import MissingPathError, UserError, replacing
from taming.serialization import load_saved_model, load_training_checkpoint, saved_checkpoints
from taming.tokenizer import VQGAN
from taming.training import (
    EndAfterStep,
    WholeFileCheckpointIO,
    check_resume,
    checkpoints,
    finished_steps,
)
from taming.training.metrics_file import read_rows

Finished = Callable[..., Run]


def last(directory: Path) -> Path:
    return directory / "checkpoints" / "last.ckpt"


def content(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def step_of(path: Path) -> int:
    return content(path)["global_step"]


def validations(module: Any, values: list[float]) -> None:
    """Replaces the loss of the validations."""
    log, following = module.log_validation, iter(values)
    module.log_validation = lambda metrics: log({**metrics, "loss": next(following)})


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize(("settings", "accumulate"), [("plain", 1), ("accumulated", 2)])
def test_steps_are_updates(finished: Finished, kind: str, settings: str, accumulate: int) -> None:
    run = finished(kind, settings)
    assert (run.result.step, run.result.exported_step, run.result.interrupted) == (8, 8, False)
    assert len(run.data.trained_on(8 * accumulate)) == 8 * accumulate * 4
    reported = range(accumulate, 9, accumulate)  # each or every second step
    expected = [1e-2 * optimizer_config().factor(step - 1, 8) for step in reported]
    rates = run.recorder.column("train/learning_rate")
    assert rates == [pytest.approx(pair) for pair in zip(reported, expected, strict=True)]
    validated = [step for step, row in run.recorder.rows if "val/gap" in row or "val/psnr" in row]
    assert validated == [3, 6, 8]  # every third step, and at the end
    assert sorted(run.result.metrics) == sorted(run.module.val_modes)
    for name, start in (("discriminator", 3), ("generator", 4)):  # learns, and is listened to
        steps = [step for step, _ in run.recorder.column(f"train/{name}_loss")]
        assert steps == [step for step in reported if step >= start and kind == "vqgan"]
    optimizer = content(last(run.directory))["optimizer_states"][0]
    updates = {
        group["prefix"]: {int(optimizer["state"][index]["step"]) for index in group["params"]}
        for group in optimizer["param_groups"]
    }
    assert updates == ({"": {8}, "discriminator_": {6}} if kind == "vqgan" else {"": {8}})


def test_validation_uses_the_whole_set_and_the_averaged_model(finished: Finished) -> None:
    run = finished("vqgan")
    images = run.data.val_dataset.tensors["images"]  # 7, in batches of 3, 3 and 1
    with torch.no_grad():
        output = VQGAN.from_pretrained(run.directory)(images)
    difference = output.reconstructions - images
    pixel = difference.abs().mean().item()
    perceptual = difference.diff(dim=3).square().mean().item()
    counts = output.quantizer.indices.flatten().bincount(minlength=8).double()
    p = (counts / counts.sum())[counts > 0]
    expected = {
        "val/pixel_loss": pixel,
        "val/perceptual_loss": perceptual,
        "val/reconstruction_loss": pixel + perceptual,
        "val/codebook_usage": (counts > 0).double().mean().item(),
        "val/codebook_perplexity": torch.exp(-(p * p.log()).sum()).item(),
    }
    actual = {name: run.result.metrics[name] for name in expected}
    assert actual == pytest.approx(expected, rel=1e-5)
    assert (run.directory / "grids" / "reconstructions_0000008.png").stat().st_size > 0


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_average_is_exported_and_a_checkpoint_needs_no_other_file(
    finished: Finished, settings: str
) -> None:
    directory = finished("vqgan", settings).directory
    checkpoint = content(last(directory))  # plain data only
    exported = checkpoint["state_dict"]["vqgan.decoder.conv_out.weight"]
    if settings == "plain":  # the other has no average
        trained = checkpoint["current_model_state"]["vqgan.decoder.conv_out.weight"]
        assert not torch.equal(trained, exported)
    prints = set()
    for path in (last(directory), directory, directory / "model"):
        vqgan = VQGAN.from_pretrained(path)
        assert torch.equal(vqgan.last_layer, exported)
        prints.add(vqgan.to_saved().fingerprint())
    assert len(prints) == 1


@pytest.mark.parametrize("losses", [[3.0, 1.0, 2.0, 1.0], [float("nan"), 2.0, 3.0, 3.0]])
def test_the_best_is_exported(tmp_path: Path, losses: list[float]) -> None:
    module, data = stage("transformer")
    validations(module, losses)
    run = run_training(tmp_path, module, data, max_steps=4, val_check_interval=1, export="best")
    assert (run.result.exported_step, run.result.metrics_step) == (2, 2)
    paths = [tmp_path / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")]
    assert [step_of(path) for path in paths] == [2, 4]
    prints = [load_training_checkpoint(path).fingerprint() for path in paths]
    assert prints[0] != prints[1]
    assert load_saved_model(tmp_path / "model").fingerprint() == prints[0]


@pytest.mark.parametrize(
    ("losses", "full", "export", "steps"),
    [
        ([4.0, 3.0, 2.0, 1.0], {2, 3, 4}, "best", [1, 1]),
        ([4.0, 3.0, 2.0, 1.0], {2, 3, 4}, "last", [1, 1]),
        ([3.0, 1.0, 2.0, 4.0], {2}, "best", [1, 4]),  # the best is not that of the disk
        ([4.0, 3.0, 2.0, 1.0], {2}, None, [4, 4]),  # a better one has been written since
    ],
)
def test_a_full_disk_leaves_the_earlier_checkpoint_and_exports_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    losses: list[float], full: set[int], export: str | None, steps: list[int],
) -> None:  # fmt: skip
    @contextmanager
    def on_full_disk(path: Path, mode: str) -> Iterator[Any]:
        with replacing(path, mode) as file:

            def write(content: memoryview) -> None:
                file.write(content[: len(content) // 2])
                if torch.load(io.BytesIO(content), weights_only=True)["global_step"] in full:
                    raise OSError(28, "No space left on device")
                file.write(content[len(content) // 2 :])

            yield SimpleNamespace(write=write)

    monkeypatch.setattr(checkpoints, "replacing", on_full_disk)
    monkeypatch.chdir(tmp_path)
    module, data = stage("transformer")
    validations(module, losses)
    changes: dict[str, Any] = {"max_steps": 4, "val_check_interval": 1, "export": export or "best"}
    with caplog.at_level(logging.WARNING, "taming"):
        if export is None:
            assert run_training(Path("run"), module, data, **changes).result.exported_step == 4
        else:
            message = rf"{export}\.ckpt could not be written \(.*No space left.*earlier {export}"
            with pytest.raises(UserError, match=message):
                run_training(Path("run"), module, data, **changes)
            assert not Path("run/model").exists()  # of an older step
    assert module.global_step == 4  # it trained on, and said so
    assert "Training continues" in caplog.text
    saved_steps = {path.stem: step_of(path) for path in Path("run/checkpoints").iterdir()}
    earlier = {} if steps[1] == 1 else {"last-1": 3}
    assert saved_steps == {"best": steps[0], "last": steps[1], **earlier}


# --- resuming and ending ------------------------------------------------------------------------


class Failure(L.Callback):
    """The program fails at the first batch of the sixth step; a copy is as if it were killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == 5:
            trainer.strategy.checkpoint_io.teardown()  # what has been saved is on the disk
            shutil.copytree(self.directory, self.directory.with_suffix(".killed"))
            raise RuntimeError("the machine stopped")


def run_until(directory: Path, kind: str, end: str, **changes: Any) -> int:
    """Leaves the directory of a run that ended early; returns the step of its checkpoint."""
    if end.startswith("SIG"):
        name, _, step_text = end.split()
        step, number = int(step_text), signal.Signals[name]
        before = signal.getsignal(number)
        with pytest.raises(SystemExit) as ended:
            run_training(directory, *stage(kind), interrupt_at=step, interrupt_by=number, **changes)
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) == before
        assert not (directory / "model").exists()  # there was no time
        return step
    if end.startswith("Ctrl-C"):
        before, step = signal.getsignal(signal.SIGINT), int(end.split()[-1])
        run = run_training(directory, *stage(kind), interrupt_at=step, **changes)
        result = run.result
        assert (result.step, result.interrupted, result.exported_step) == (step, True, step)
        assert run.data.trained_on(step * changes.get("accumulate_grad_batches", 1))
        assert signal.getsignal(signal.SIGINT) == before
        load_saved_model(directory / "model")
        return step
    with pytest.raises(RuntimeError, match="the machine stopped"):
        run_training(directory, *stage(kind), callbacks=[Failure(directory)], **changes)
    if end == "failed":
        return 5
    shutil.rmtree(directory)
    directory.with_suffix(".killed").rename(directory)
    return 4 if "save_every" in changes else 3


@pytest.mark.parametrize(
    ("kind", "end", "settings", "changes"),
    [
        ("vqgan", "Ctrl-C at 4", "plain", {}),  # between validations, in the midst of an epoch
        ("vqgan", "SIGTERM at 3", "accumulated", {}),  # after a validation, between reports
        ("transformer", "SIGUSR1 at 5", "plain", {}),
        ("vqgan", "killed", "plain", {"save_every": 2}),
        ("transformer", "failed", "accumulated", {}),
        ("transformer", "killed", "plain", {}),
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_run(
    tmp_path: Path, finished: Finished, kind: str, end: str, settings: str, changes: dict[str, Any]
) -> None:
    uninterrupted, parts = finished(kind, settings), tmp_path / "parts"
    changes = {**SETTINGS[settings], **changes}
    accumulate = changes.get("accumulate_grad_batches", 1)
    first_steps = run_until(parts, kind, end, **changes)
    module, data = stage(kind)
    torch.rand(7)  # whatever was drawn before, the run goes on with its own random numbers
    assert check_resume(parts, "vqgan" if kind == "vqgan" else "generator")[0] == last(parts)
    assert step_of(last(parts)) == first_steps
    result = run_training(parts, module, data, resume=True, **changes).result
    assert (result.step, result.interrupted) == (8, False)
    rest = (MAX_STEPS - first_steps) * accumulate
    assert data.trained_on(rest) == uninterrupted.data.trained_on(8 * accumulate)[-rest * 4 :]

    saved = [content(last(directory)) for directory in (uninterrupted.directory, parts)]
    for one in saved:
        del one["loops"], one["callbacks"]
    (leaves, structure), (other_leaves, other_structure) = map(tree_flatten, saved)
    assert structure == other_structure
    for one, other in zip(leaves, other_leaves, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    runs = uninterrupted.directory, parts
    assert len({load_saved_model(run / "model").fingerprint() for run in runs}) == 1
    first, second = (read_rows(run / "metrics.csv") for run in runs)
    assert first == second
    assert torch.get_float32_matmul_precision() == "highest"  # as ever on a CPU


def test_the_result_has_the_step_of_its_metrics(tmp_path: Path) -> None:
    module, data = stage("vqgan")
    first = run_training(tmp_path, module, data, interrupt_at=5).result
    assert (first.exported_step, first.metrics_step) == (5, 3)  # validated every third step
    result_json = json.loads((tmp_path / "result.json").read_text())
    assert result_json == asdict(first)
    assert result_json["precision"] == "32-true"
    assert set(result_json["versions"]) >= {"taming", "python", "torch", "lightning"}
    assert content(last(tmp_path))["val_step"] == 3
    clock = content(last(tmp_path))["callbacks"]["Timer"]
    clock["time_elapsed"]["train"] = 1000.0
    torch.save({**content(last(tmp_path)), "callbacks": {"Timer": clock}}, last(tmp_path))
    module, data = stage("vqgan")
    result = run_training(tmp_path, module, data, resume=True).result
    assert (result.exported_step, result.metrics_step) == (8, 8)
    assert result.duration_seconds > 1000  # the first session's are among them
    assert result.images_per_second > 0.05  # and are not divided by


def test_a_run_that_ended_before_a_validation_has_no_metrics(tmp_path: Path) -> None:
    result = run_training(tmp_path, *stage("transformer"), interrupt_at=2).result
    assert (result.metrics, result.metrics_step, result.exported_step) == ({}, None, 2)


@pytest.mark.parametrize("kind", STAGES)
def test_settings_of_the_optimizer_can_be_changed_on_resume(
    tmp_path: Path, finished: Finished, kind: str
) -> None:
    shutil.copytree(finished(kind).directory, tmp_path, dirs_exist_ok=True)
    changed = {"weight_decay": 0.3, "betas": (0.5, 0.8), "fused": False}
    other = optimizer_config(learning_rate=3e-3, **changed)
    module, data = stage(kind, optimizer=other)
    if kind == "vqgan":
        module.adversary.optimizer = other
    run = run_training(tmp_path, module, data, resume=True, max_steps=10)
    rates = run.recorder.column("train/learning_rate")
    assert rates == [(s + 1, pytest.approx(3e-3 * other.factor(s, 10))) for s in (8, 9)]
    groups = content(last(tmp_path))["optimizer_states"][0]["param_groups"]
    actual = [(g["weight_decay"], g["betas"], bool(g["fused"])) for g in groups]
    assert actual == [(0.3, (0.5, 0.8), False), (0.0, (0.5, 0.8), False)] * (len(groups) // 2)
    assert len(groups) == (4 if kind == "vqgan" else 2)


def test_a_failed_restore_changes_nothing(tmp_path: Path, finished: Finished) -> None:
    shutil.copytree(finished("transformer").directory, tmp_path, dirs_exist_ok=True)
    other, data = stage("transformer")
    other.transformer.head = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="head"):
        run_training(tmp_path, other, data, resume=True, max_steps=9)
    assert (tmp_path / "result.json").exists()
    load_saved_model(tmp_path / "model")


class SavedModels(L.Callback):
    """Notes the model and the result in the run directory after each step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.actual: list[tuple[str, int]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        fingerprint = load_saved_model(self.directory / "model").fingerprint()
        self.actual.append((fingerprint, finished_steps(self.directory)))


def test_the_earlier_model_stays_until_the_new_one_is_written(
    tmp_path: Path, finished: Finished
) -> None:
    shutil.copytree(finished("transformer").directory, tmp_path, dirs_exist_ok=True)
    earlier = load_saved_model(tmp_path / "model").fingerprint()
    leftover = tmp_path / "model.unfinished"  # of a killed process
    shutil.copytree(tmp_path / "model", leftover / "new")
    own_files = [tmp_path / "model" / "notes.txt", tmp_path / "model.unfinished_ideas" / "a.txt"]
    for file in own_files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    models = SavedModels(tmp_path)
    run_training(tmp_path, *stage("transformer"), resume=True, max_steps=10, callbacks=[models])
    assert models.actual == [(earlier, 8)] * 2
    assert load_saved_model(tmp_path / "model").fingerprint() != earlier
    assert finished_steps(tmp_path) == 10
    assert all(file.exists() for file in own_files)
    assert [path.name for path in tmp_path.glob("model.*")] == ["model.unfinished_ideas"]


def test_lightning_still_has_the_method_that_is_switched_off() -> None:
    assert callable(L.Trainer(logger=False).fit_loop.epoch_loop._broadcast_sigterm_tensor)


def test_ctrl_c_twice_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    handlers: list[object] = []
    monkeypatch.setattr(signal, "signal", lambda *handler: handlers.append(handler))
    monkeypatch.setattr(signal, "raise_signal", signals.append)
    end = EndAfterStep()
    end._request(signal.SIGTERM, None)
    end._request(signal.SIGTERM, None)  # schedulers and launchers send it to the same process
    end._request(signal.SIGINT, None)
    assert (signals, end.requested) == ([], signal.SIGINT)
    end._request(signal.SIGINT, None)
    assert (signals, handlers) == ([signal.SIGINT], [(signal.SIGINT, signal.SIG_DFL)])


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(
    tmp_path: Path, finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    source = finished("transformer").directory
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    before, best = (last(tmp_path).with_name(name) for name in ("last-1.ckpt", "best.ckpt"))
    assert saved_checkpoints(tmp_path) == [last(tmp_path), before, best]
    damage(last(tmp_path))
    with caplog.at_level(logging.WARNING, "taming"):
        assert check_resume(tmp_path, "generator")[0] == before
    assert "damaged, incomplete or of another program" in caplog.text
    assert f"Resuming from {before}, step 6." in caplog.text
    run_training(tmp_path, *stage("transformer"), resume=True)
    assert [step_of(path) for path in (last(tmp_path), before)] == [8, 6]
    assert last(tmp_path).with_name("last.ckpt.damaged").is_file()
    prints = [load_saved_model(run / "model").fingerprint() for run in (source, tmp_path)]
    assert prints[0] == prints[1]

    damage(last(tmp_path))
    damage(before)
    shutil.copy(last(source), best)
    result = run_training(tmp_path, *stage("transformer"), resume=True).result
    assert result.exported_step == 8  # no step was left, and the damaged ones are not exported
    assert saved_checkpoints(tmp_path) == [best]
    assert load_saved_model(tmp_path / "model").fingerprint() == prints[0]
    damage(best)
    with pytest.raises(UserError, match=r"best\.ckpt .*damaged"):
        check_resume(tmp_path, "generator")


def damage(path: Path) -> None:
    """Changes some bits of a weight, which torch.load does not notice."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, io.SEEK_CUR)
        file.write(bytes([byte[0] ^ 255]))


def test_number_of_checkpoints(tmp_path: Path) -> None:
    files = WholeFileCheckpointIO(keep=3)
    for step in range(5):
        for name in ("last", "best"):
            files.save_checkpoint({"step": step}, tmp_path / f"{name}.ckpt")
    files.teardown()
    actual = {path.name: content(path)["step"] for path in tmp_path.iterdir()}
    assert actual == {"last.ckpt": 4, "last-1.ckpt": 3, "last-2.ckpt": 2, "best.ckpt": 4}


def test_runs_that_cannot_be_resumed(tmp_path: Path, finished: Finished) -> None:
    with pytest.raises(MissingPathError, match=r"nothing to resume: .*last\.ckpt does not exist"):
        check_resume(tmp_path, "generator")
    shutil.copytree(finished("transformer").directory, tmp_path, dirs_exist_ok=True)
    with pytest.raises(UserError, match="holds a generator, but a vqgan is needed"):
        check_resume(tmp_path, "vqgan")
    older = content(last(tmp_path))
    older["model"]["format_version"] = 1
    torch.save(older, last(tmp_path))
    with pytest.raises(UserError, match="has format version 1, but"):
        check_resume(tmp_path, "generator")
    half = last(tmp_path).read_bytes()
    last(tmp_path).write_bytes(half[: len(half) // 2])
    for other in saved_checkpoints(tmp_path)[1:]:
        other.unlink()
    with pytest.raises(UserError, match=r"last\.ckpt .*incomplete"):
        check_resume(tmp_path, "generator")
