"""Whole runs of both stages: steps, checkpoints, resuming and ending."""

import csv
import logging
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import (
    STAGES,
    optimizer_config,
    run_training,
    stage,
)

from taming.errors import MissingPathError, UserError
from taming.serialization import load_saved_model, load_training_checkpoint
from taming.training import EndAfterStep, check_resume
from taming.vqgan import VQGAN


def last(directory: Path) -> Path:
    return directory / "checkpoints" / "last.ckpt"


def content(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def rows(directory: Path) -> list[dict[str, str]]:
    with (directory / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_equal(first: Any, second: Any, where: str = "") -> None:
    """Compares nested plain data bit for bit."""
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_equal(first[key], second[key], f"{where}.{key}")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), where
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_equal(one, other, f"{where}.{index}")
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second), where
    else:
        assert first == second, where


def validations(module: Any, name: str, values: list[float]) -> None:
    """Replaces a number of the validations."""
    log, following = module.log_validation, iter(values)
    module.log_validation = lambda numbers: log({**numbers, name: next(following)})


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_are_updates(tmp_path: Path, kind: str, accumulate: int) -> None:
    module, data = stage(kind)
    result, recorder = run_training(
        tmp_path,
        module,
        data,
        max_steps=5,
        accumulate_grad_batches=accumulate,
        val_check_interval=3 * accumulate,  # Lightning counts batches
    )
    assert (result.step, result.exported_step, result.interrupted) == (5, 5, False)
    assert len(data.trained_on(5 * accumulate)) == 5 * accumulate * 4
    rates = recorder.column("train/learning_rate")
    assert [step for step, _ in rates] == [1, 2, 3, 4, 5]
    expected = [1e-2 * optimizer_config().factor(step, 5) for step in range(5)]
    assert [rate for _, rate in rates] == pytest.approx(expected)
    validated = [step for step, row in recorder.rows if "val/gap" in row or "val/psnr" in row]
    assert validated == [3, 5]  # every third step, and at the end
    assert sorted(result.metrics) == sorted(module.val_modes)
    learned = [step for step, _ in recorder.column("train/discriminator_loss")]
    listened = [step for step, _ in recorder.column("train/generator_loss")]
    assert (learned, listened) == (([3, 4, 5], [4, 5]) if kind == "vqgan" else ([], []))
    checkpoint = content(last(tmp_path))
    assert checkpoint["global_step"] == 5
    optimizer = checkpoint["optimizer_states"][0]
    updates = {
        group["prefix"]: {int(optimizer["state"][index]["step"]) for index in group["params"]}
        for group in optimizer["param_groups"]
    }
    assert updates == ({"": {5}, "discriminator_": {3}} if kind == "vqgan" else {"": {5}})


def test_validation_numbers_are_of_the_whole_set_and_the_average_model(tmp_path: Path) -> None:
    module, data = stage("vqgan")
    result, _ = run_training(tmp_path, module, data, max_steps=3)
    images = data.val_items.tensors["images"]  # 7, in batches of 3, 3 and 1
    with torch.no_grad():
        output = VQGAN.from_pretrained(tmp_path)(images)
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
    found = {name: result.metrics[name] for name in expected}
    assert found == pytest.approx(expected, rel=1e-5)
    assert (tmp_path / "grids" / "reconstructions_0000003.png").stat().st_size > 0


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("ema_decay", [0.5, None])
def test_the_average_is_exported_and_a_checkpoint_needs_no_other_file(
    tmp_path: Path, ema_decay: float | None
) -> None:
    module, data = stage("vqgan")
    run_training(tmp_path, module, data, max_steps=3, ema_decay=ema_decay)
    checkpoint = content(last(tmp_path))  # plain data only
    exported = checkpoint["state_dict"]["vqgan.decoder.conv_out.weight"]
    if ema_decay is not None:
        trained = checkpoint["current_model_state"]["vqgan.decoder.conv_out.weight"]
        assert not torch.equal(trained, exported)
    prints = set()
    for path in (last(tmp_path), tmp_path, tmp_path / "model"):
        vqgan = VQGAN.from_pretrained(path)
        assert torch.equal(vqgan.last_layer, exported)
        prints.add(vqgan.to_saved().fingerprint())
    assert len(prints) == 1


@pytest.mark.parametrize(
    ("values", "best"), [([3.0, 1.0, 2.0, 1.0], 4), ([float("nan"), 2.0, 3.0, 3.0], 4)]
)
@pytest.mark.parametrize("export", ["best", "last"])
def test_the_best_or_the_last_is_exported(
    tmp_path: Path, values: list[float], best: int, export: str
) -> None:
    module, data = stage("transformer")
    validations(module, "loss", values)
    result, _ = run_training(tmp_path, module, data, val_check_interval=2, export=export)
    assert result.exported_step == (best if export == "best" else 8)
    paths = {name: tmp_path / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")}
    assert {n: content(path)["global_step"] for n, path in paths.items()} == {
        "best": best, "last": 8
    }  # fmt: skip
    prints = {name: load_training_checkpoint(path).fingerprint() for name, path in paths.items()}
    assert prints["best"] != prints["last"]
    assert load_saved_model(tmp_path / "model").fingerprint() == prints[export]


def full_disk(monkeypatch: pytest.MonkeyPatch, full: Callable[[int], bool]) -> None:
    """Checkpoints of some steps cannot be written."""
    save = torch.save

    def fails(checkpoint: Any, file: Any, *args: Any) -> None:
        if full(checkpoint["global_step"]):
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        save(checkpoint, file, *args)

    monkeypatch.setattr(torch, "save", fails)


def test_a_failed_write_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, data = stage("transformer")
    validations(module, "loss", [3.0, 2.0, 1.0, 1.0])
    full_disk(monkeypatch, lambda step: step >= 4)
    with pytest.raises(UserError) as caught, caplog.at_level(logging.WARNING, "taming"):
        run_training(tmp_path, module, data, val_check_interval=2, export="best")
    assert module.global_step == 8  # it trained on, and said so
    assert sum("Training goes on" in message for message in caplog.messages) == 5
    for part in ("best.ckpt", "No space left", "earlier best.ckpt is intact", "Free some"):
        assert part in str(caught.value)
    paths = sorted((tmp_path / "checkpoints").iterdir())
    assert [path.name for path in paths] == ["best.ckpt", "last.ckpt"]
    for path in paths:
        assert content(path)["global_step"] == 2
        load_training_checkpoint(path)


def test_a_failed_last_checkpoint_is_told_of_a_relative_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, data = stage("transformer")
    full_disk(monkeypatch, lambda step: step >= 4)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"last\.ckpt could not be written.*No space left"):
        run_training(Path("run"), module, data, val_check_interval=2, export="last")
    assert not Path("run/model").exists()  # of an older step


@pytest.mark.parametrize("losses", [[3.0, 1.0, 2.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
def test_a_best_that_was_not_written_is_told_until_another_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float]
) -> None:
    module, data = stage("transformer")
    validations(module, "loss", losses)
    full_disk(monkeypatch, lambda step: step == 4)
    changes: dict[str, Any] = {"val_check_interval": 2, "export": "best"}
    if losses[-1] == 1.0:  # a better one has been written since
        assert run_training(tmp_path, module, data, **changes)[0].exported_step == 8
        return
    with pytest.raises(UserError, match=r"best\.ckpt could not be written.*best\.ckpt is intact"):
        run_training(tmp_path, module, data, **changes)
    assert content(last(tmp_path))["global_step"] == 8


def test_what_cannot_be_restored_costs_the_run_nothing(tmp_path: Path) -> None:
    run_training(tmp_path, *stage("transformer"), max_steps=2)
    other, data = stage("transformer")
    other.transformer.head = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="head"):
        run_training(tmp_path, other, data, resume=True, max_steps=4)
    assert (tmp_path / "result.json").exists()
    load_saved_model(tmp_path / "model")
    result, _ = run_training(tmp_path, *stage("transformer"), resume=True, max_steps=4)
    assert result.exported_step == 4


def test_a_number_that_is_not_reported_cannot_be_monitored(tmp_path: Path) -> None:
    module, data = stage("transformer")
    with pytest.raises(UserError, match=r"'val/los', which validation does not report.*val/loss"):
        run_training(tmp_path, module, data, monitor="val/los")
    assert module.global_step == 0


# --- resuming and ending ------------------------------------------------------------------------


class Fate(L.Callback):
    """At the first batch of the sixth step the program fails, or is killed."""

    def __init__(self, directory: Path, killed: bool) -> None:
        self.directory, self.killed = directory, killed

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step != 5:
            return
        if not self.killed:
            raise RuntimeError("the machine stopped")
        left = self.directory.with_suffix(".killed")  # what is on the disk now
        if not left.exists():
            shutil.copytree(self.directory, left)


def run_until(directory: Path, kind: str, end: str, **changes: Any) -> None:
    """Leaves a run directory as of a run that ended early."""
    if end.startswith("Ctrl-C"):
        step = int(end.split()[-1])
        module, data = stage(kind)
        result, _ = run_training(directory, module, data, interrupt_at=step, **changes)
        assert (result.step, result.interrupted, result.exported_step) == (step, True, step)
        assert load_saved_model(directory / "model").fingerprint()
        assert content(last(directory))["global_step"] == step
        return
    fate = [Fate(directory, killed=end == "killed")]
    if end == "killed":
        run_training(directory, *stage(kind), callbacks=fate, **changes)
        shutil.rmtree(directory)
        directory.with_suffix(".killed").rename(directory)
        assert content(last(directory))["global_step"] == (4 if "save_every" in changes else 3)
    else:
        with pytest.raises(RuntimeError, match="the machine stopped"):
            run_training(directory, *stage(kind), callbacks=fate, **changes)
        assert content(last(directory))["global_step"] == 5


@pytest.mark.parametrize(
    ("kind", "end", "changes"),
    [
        ("vqgan", "Ctrl-C at 4", {}),  # between validations, in the midst of an epoch
        ("vqgan", "Ctrl-C at 3", {"accumulate_grad_batches": 2, "val_check_interval": 6}),
        ("vqgan", "failed", {"log_every_n_steps": 2}),
        ("vqgan", "killed", {"save_every": 2}),
        ("transformer", "Ctrl-C at 3", {}),  # after a validation
        ("transformer", "failed", {"accumulate_grad_batches": 2, "val_check_interval": 6}),
        ("transformer", "killed", {"log_every_n_steps": 5, "ema_decay": None}),
    ],
)
def test_a_resumed_run_is_the_run_that_did_not_end(
    tmp_path: Path, kind: str, end: str, changes: dict[str, Any]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    module, data = stage(kind)
    run_training(whole, module, data, **changes)
    accumulate = changes.get("accumulate_grad_batches", 1)
    order = data.trained_on(8 * accumulate)

    run_until(parts, kind, end, **changes)
    module, data = stage(kind)
    torch.rand(7)  # whatever was drawn before, the run goes on with its own random numbers
    _, done = check_resume(parts, "vqgan" if kind == "vqgan" else "generator")
    result, _ = run_training(parts, module, data, resume=True, **changes)
    assert (result.step, result.interrupted) == (8, False)
    rest = (8 - done) * accumulate
    assert data.trained_on(rest) == order[-rest * 4 :]

    one, other = content(last(whole)), content(last(parts))
    assert one.keys() == other.keys()
    for key in one.keys() - {"loops", "callbacks"}:
        assert_equal(one[key], other[key], key)
    prints = [load_saved_model(run / "model").fingerprint() for run in (whole, parts)]
    assert prints[0] == prints[1]
    assert rows(whole) == rows(parts)


@pytest.mark.parametrize("kind", STAGES)
def test_what_is_changed_for_the_rest_of_a_run_is_changed(tmp_path: Path, kind: str) -> None:
    run_training(tmp_path, *stage(kind), interrupt_at=3)
    changed = {"weight_decay": 0.3, "betas": (0.5, 0.8), "fused": False}
    other = optimizer_config(learning_rate=3e-3, **changed)
    module, data = stage(kind, optimizer=other)
    if kind == "vqgan":
        module.adversary.optimizer = other
    _, recorder = run_training(tmp_path, module, data, resume=True)
    rates = recorder.column("train/learning_rate")
    assert rates == [(s + 1, pytest.approx(3e-3 * other.factor(s, 8))) for s in range(3, 8)]
    groups = content(last(tmp_path))["optimizer_states"][0]["param_groups"]
    found = [(g["weight_decay"], g["betas"], g["fused"]) for g in groups]
    assert found == [(0.3, (0.5, 0.8), False), (0.0, (0.5, 0.8), False)] * (len(groups) // 2)
    assert len(groups) == (4 if kind == "vqgan" else 2)


def test_an_interrupted_run_gives_the_signal_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    module, data = stage("vqgan")
    changes = {"accumulate_grad_batches": 2, "val_check_interval": 6}
    result, _ = run_training(tmp_path, module, data, interrupt_at=2, **changes)
    assert (result.step, result.interrupted) == (2, True)
    assert len(data.trained_on(2 * 2)) == 2 * 2 * 4
    assert signal.getsignal(signal.SIGINT) == before
    twice = EndAfterStep()
    twice._request(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        twice._request(signal.SIGINT, None)


def test_on_a_cpu_products_stay_exact(tmp_path: Path) -> None:
    run_training(tmp_path, *stage("transformer"), max_steps=1)
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match=r"nothing to resume: .*last\.ckpt does not exist"):
        check_resume(tmp_path, "generator")
    run_training(tmp_path, *stage("transformer"), max_steps=2)
    assert check_resume(tmp_path, "generator") == (last(tmp_path), 2)
    with pytest.raises(UserError, match="holds a generator, where a vqgan is needed"):
        check_resume(tmp_path, "vqgan")
    half = last(tmp_path).read_bytes()
    last(tmp_path).write_bytes(half[: len(half) // 2])
    with pytest.raises(UserError, match=r"last\.ckpt .*incomplete"):
        check_resume(tmp_path, "generator")
