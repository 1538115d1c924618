"""Whole runs of both stages: steps, checkpoints, resuming and ending."""

import csv
import logging
import os
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_training import (
    image_data,
    run_training,
    tiny_adversary,
    token_data,
    trainer_config,
    transformer_training,
    vqgan_training,
)

from taming.errors import MissingPathError, UserError
from taming.serialization import load_saved_model, load_training_checkpoint
from taming.training import OptimizerConfig, VQGANTraining, check_resume, train
from taming.training.health import OverfittingWatch
from taming.training.module import TrainingModule
from taming.vqgan import VQGAN


def stage(kind: str, **changes: Any) -> tuple[TrainingModule, Any]:
    torch.manual_seed(0)
    if kind == "vqgan":
        return vqgan_training(tiny_adversary(), **changes), image_data()
    return transformer_training(**changes), token_data()


def config_for(kind: str, **changes: Any) -> Any:
    monitor = "val/reconstruction_loss" if kind == "vqgan" else "val/loss"
    return trainer_config(**{"monitor": monitor, **changes})


def last(directory: Path) -> Path:
    return directory / "checkpoints" / "last.ckpt"


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


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vqgan", "transformer"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_are_updates_of_the_generator(tmp_path: Path, kind: str, accumulate: int) -> None:
    module, data = stage(kind, max_steps=5, accumulate=accumulate)
    config = config_for(kind, max_steps=5, accumulate=accumulate)
    result, recorder = run_training(tmp_path, module, data, config)
    assert result.step == module.step == 5
    assert not result.interrupted
    assert len(data.trained_on(5 * accumulate)) == 5 * accumulate * 4
    rates = recorder.column("train/learning_rate")
    assert [step for step, _ in rates] == [1, 2, 3, 4, 5]
    optimizer = vars(module)["optimizer"]
    assert [rate for _, rate in rates] == [optimizer.learning_rate_at(s, 5) for s in range(5)]
    validated = [step for step, row in recorder.rows if config.monitor in row]
    assert validated == [3, 5]  # every third step, and at the end
    assert recorder.finished == 1
    adam = torch.load(last(tmp_path), weights_only=True)["optimizer_states"][0]["state"]
    assert {int(state["step"]) for state in adam.values()} == {5}


def test_the_adversary_follows_the_same_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = vqgan_training(tiny_adversary(), accumulate=2)  # start 2, warmup 1, ramp 2
    config = config_for("vqgan", accumulate=2)
    _, recorder = run_training(tmp_path, module, image_data(), config)
    learned = [step for step, _ in recorder.column("train/discriminator_loss")]
    listened = [step for step, _ in recorder.column("train/generator_loss")]
    assert learned == [3, 4, 5, 6, 7, 8]  # from the step after two finished ones
    assert listened == [4, 5, 6, 7, 8]
    states = torch.load(last(tmp_path), weights_only=True)["optimizer_states"]
    steps = [{int(s["step"]) for s in state["state"].values()} for state in states]
    assert steps == [{8}, {6}]


def test_validation_numbers_are_of_the_whole_set_and_the_average_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, data = vqgan_training(max_steps=3), image_data()
    result, _ = run_training(tmp_path, module, data, config_for("vqgan", max_steps=3))
    images = data.val_items.tensors["images"]  # 7, in batches of 3, 3 and 1
    vqgan = VQGAN.from_pretrained(tmp_path)
    with torch.no_grad():
        output = vqgan(images)
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


@pytest.mark.parametrize("kind", ["vqgan", "transformer"])
def test_the_same_seed_gives_the_same_run(tmp_path: Path, kind: str) -> None:
    for name in ("one", "two"):
        module, data = stage(kind, max_steps=3)
        run_training(tmp_path / name, module, data, config_for(kind, max_steps=3))
    first, second = (torch.load(last(tmp_path / n), weights_only=True) for n in ("one", "two"))
    assert_equal(first["state_dict"], second["state_dict"])


# --- checkpoints --------------------------------------------------------------------------------


def test_the_average_is_exported_and_a_checkpoint_needs_no_other_file(tmp_path: Path) -> None:
    module, data = stage("vqgan", max_steps=3, ema_decay=0.5)
    assert isinstance(module, VQGANTraining)
    run_training(tmp_path, module, data, config_for("vqgan", max_steps=3))
    assert not torch.equal(module.averaged_vqgan.last_layer, module.vqgan.last_layer)
    content = torch.load(last(tmp_path), weights_only=True)  # plain data only
    assert content["step"] == 3
    prints = {
        VQGAN.from_pretrained(path).to_saved().fingerprint()
        for path in (last(tmp_path), tmp_path, tmp_path / "model")
    }
    assert prints == {module.averaged_vqgan.to_saved().fingerprint()}


def test_without_an_average_the_model_itself_is_exported(tmp_path: Path) -> None:
    module, data = stage("vqgan", max_steps=1, ema_decay=None)
    assert isinstance(module, VQGANTraining)
    run_training(tmp_path, module, data, config_for("vqgan", max_steps=1))
    assert torch.equal(VQGAN.from_pretrained(tmp_path).last_layer, module.vqgan.last_layer)


class Validations:
    """Replaces the monitored number by given ones."""

    def __init__(self, module: TrainingModule, name: str, values: list[float]) -> None:
        self.name, self.values, self.report = name, iter(values), module.report
        module.report = self  # type: ignore[method-assign, assignment]

    def __call__(self, metrics: Any) -> None:
        if self.name in metrics:
            metrics = {**metrics, self.name: next(self.values)}
        self.report(metrics)


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("min", [3.0, 1.0, 2.0, 1.0], 4),
        ("max", [1.0, 2.0, 3.0, 2.0], 6),
        ("min", [float("nan"), 2.0, 3.0, 3.0], 4),
    ],
)
@pytest.mark.parametrize("export", ["best", "last"])
def test_the_best_or_the_last_is_exported(
    tmp_path: Path, mode: str, values: list[float], best: int, export: str
) -> None:
    module, data = stage("transformer")
    Validations(module, "val/loss", values)
    config = config_for("transformer", val_every=2, mode=mode, export=export)
    result, _ = run_training(tmp_path, module, data, config)
    assert result.exported_step == (best if export == "best" else 8)
    checkpoints = tmp_path / "checkpoints"
    assert torch.load(checkpoints / "best.ckpt", weights_only=True)["step"] == best
    assert torch.load(checkpoints / "last.ckpt", weights_only=True)["step"] == 8
    exported = load_saved_model(tmp_path / "model").fingerprint()
    expected = load_training_checkpoint(checkpoints / f"{export}.ckpt").fingerprint()
    other = load_training_checkpoint(
        checkpoints / ("last.ckpt" if export == "best" else "best.ckpt")
    ).fingerprint()
    assert exported == expected != other


def test_a_failed_write_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, data = stage("transformer")
    Validations(module, "val/loss", [3.0, 2.0, 1.0, 1.0])
    save = torch.save

    def full(content: Any, file: Any, *args: Any) -> None:
        if module.step >= 4:
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        save(content, file, *args)

    monkeypatch.setattr(torch, "save", full)
    config = config_for("transformer", val_every=2, export="best")
    with pytest.raises(UserError) as caught, caplog.at_level(logging.WARNING, "taming"):
        run_training(tmp_path, module, data, config)
    assert module.step == 8  # it trained on, and said so
    assert sum("Training goes on" in message for message in caplog.messages) == 6
    for part in (str(last(tmp_path)), "No space left", "earlier last.ckpt is intact", "Free some"):
        assert part in str(caught.value)
    files = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert files == ["best.ckpt", "last.ckpt"]
    for name in files:
        path = tmp_path / "checkpoints" / name
        assert torch.load(path, weights_only=True)["step"] == 2
        load_training_checkpoint(path)


def test_a_best_that_could_not_be_written_is_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, data = stage("transformer")
    Validations(module, "val/loss", [3.0, 1.0, 2.0, 4.0])
    save = torch.save

    def full_once(*args: Any) -> None:
        if module.step == 4:
            raise OSError(28, "No space left on device")
        save(*args)

    monkeypatch.setattr(torch, "save", full_once)
    config = config_for("transformer", val_every=2, export="best")
    result, _ = run_training(tmp_path, module, data, config)
    assert result.exported_step == 6
    best = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["step"] == 6


@pytest.mark.parametrize("val_every", [2, None])
def test_no_checkpoint_stands_between_a_step_and_its_validation(
    tmp_path: Path, val_every: int | None
) -> None:
    """A run killed in its last validation would have done all its steps, and nothing to show."""
    module, data = stage("transformer", max_steps=4)
    saved = []

    def validates() -> None:
        saved.append(last(tmp_path).exists() and torch.load(last(tmp_path))["step"])

    module.on_validation_start = validates  # type: ignore[method-assign]
    config = config_for("transformer", max_steps=4, val_every=val_every, save_every=1)
    run_training(tmp_path, module, data, config)
    assert saved == ([1, 3] if val_every == 2 else [3])


@pytest.mark.parametrize(("mode", "best"), [("auto", 4), ("min", 2)])
def test_the_best_is_the_largest_where_more_is_better(tmp_path: Path, mode: str, best: int) -> None:
    module, data = stage("vqgan", max_steps=4)
    Validations(module, "val/psnr", [10.0, 20.0])
    config = config_for(
        "vqgan", max_steps=4, val_every=2, monitor="val/psnr", mode=mode, export="best"
    )
    result, _ = run_training(tmp_path, module, data, config)
    assert result.exported_step == best


def test_what_cannot_be_restored_costs_the_run_nothing(tmp_path: Path) -> None:
    module, data = stage("transformer", max_steps=2)
    run_training(tmp_path, module, data, config_for("transformer", max_steps=2))
    other = transformer_training(max_steps=4)
    other.transformer.head = torch.nn.Linear(3, 3)
    started: list[int] = []

    def resume(module: TrainingModule) -> None:
        config = config_for("transformer", max_steps=4)
        train(
            module, token_data(), config, run_dir=tmp_path, trackers=[], show=(),
            resume_from=last(tmp_path), on_start=lambda: started.append(module.step),
        )  # fmt: skip

    with pytest.raises(RuntimeError, match="head"):
        resume(other)
    assert not started
    assert (tmp_path / "result.json").exists()
    load_saved_model(tmp_path / "model")
    damaged = transformer_training(max_steps=4)
    damaged.on_train_start = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        resume(damaged)
    assert not started
    load_saved_model(tmp_path / "model")
    resume(transformer_training(max_steps=4))
    assert started == [2]


def test_a_number_that_is_not_reported_cannot_be_monitored(tmp_path: Path) -> None:
    module, data = stage("transformer")
    config = config_for("transformer", monitor="val/los", val_every=1)
    with pytest.raises(UserError, match=r"'val/los', which validation does not report.*val/loss"):
        run_training(tmp_path, module, data, config)
    assert module.step == 0


@pytest.mark.parametrize("kind", ["vqgan", "transformer"])
def test_validation_reports_what_it_says_it_will(tmp_path: Path, kind: str) -> None:
    module, data = stage(kind, max_steps=1)
    result, _ = run_training(tmp_path, module, data, config_for(kind, max_steps=1))
    assert sorted(result.metrics) == sorted(module.val_modes)


def test_a_resumed_run_may_choose_its_best_by_another_number(tmp_path: Path) -> None:
    for monitor, max_steps, best in (
        ("val/loss", 4, 2),
        ("val/loss", 6, 2),  # 3 of 6 is not better than 1
        ("val/perplexity", 8, 8),  # and now its 9, which says nothing about 1
    ):
        module, data = stage("transformer", max_steps=max_steps)
        losses = {4: [1.0, 2.0], 6: [3.0], 8: [4.0]}[max_steps]
        Validations(module, "val/loss", losses)
        config = config_for("transformer", max_steps=max_steps, val_every=2, monitor=monitor)
        resume_from = None if max_steps == 4 else last(tmp_path)
        run_training(tmp_path, module, data, config, resume_from=resume_from)
        assert torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)["step"] == best


def test_save_every_writes_between_validations(tmp_path: Path) -> None:
    module, data = stage("transformer", accumulate=2)
    seen = []
    update = module.update

    def watched() -> None:
        if last(tmp_path).exists():
            seen.append(torch.load(last(tmp_path), weights_only=True)["step"])
        update()

    module.update = watched  # type: ignore[method-assign]
    config = config_for("transformer", val_every=8, save_every=2, accumulate=2)
    run_training(tmp_path, module, data, config)
    assert seen == [2, 2, 4, 4, 6, 6]


# --- resuming and ending ------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "accumulate"), [("vqgan", 1), ("vqgan", 2), ("transformer", 1)])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(
    tmp_path: Path, kind: str, accumulate: int
) -> None:
    config = config_for(kind, accumulate=accumulate)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    module, data = stage(kind, accumulate=accumulate)
    run_training(whole, module, data, config)
    order = data.trained_on(8 * accumulate)

    module, data = stage(kind, accumulate=accumulate)
    result, _ = run_training(parts, module, data, config, interrupt_at=4)
    assert (result.step, result.interrupted, result.exported_step) == (4, True, 4)
    assert load_saved_model(parts / "model").fingerprint()
    first_order = data.trained_on(4 * accumulate)

    module, data = stage(kind, accumulate=accumulate)
    torch.rand(7)  # whatever was drawn before, the run goes on with its own random numbers
    path = check_resume(parts, 8, "vqgan" if kind == "vqgan" else "generator")
    result, _ = run_training(parts, module, data, config, resume_from=path)
    assert (result.step, result.interrupted) == (8, False)
    assert first_order + data.trained_on(4 * accumulate) == order

    one, other = (torch.load(last(run), weights_only=True) for run in (whole, parts))
    for key in ("state_dict", "optimizer_states", "model", "step", "random_state"):
        assert_equal(one[key], other[key], key)
    assert_equal(
        *(load_saved_model(run / "model").fingerprint() for run in (whole, parts)), "exported"
    )

    tables = []
    for run in (whole, parts):
        with (run / "metrics.csv").open(newline="") as file:
            tables.append(list(csv.DictReader(file)))
    assert (
        max(Counter((r["step"], bool(r["train/learning_rate"])) for r in tables[1]).values()) == 1
    )
    assert tables[0] == tables[1]


@pytest.mark.parametrize("kind", ["vqgan", "transformer"])
def test_what_is_changed_for_the_rest_of_a_run_is_changed(tmp_path: Path, kind: str) -> None:
    module, data = stage(kind)
    run_training(tmp_path, module, data, config_for(kind), interrupt_at=3)
    other = OptimizerConfig(learning_rate=1e-2, weight_decay=0.3, betas=(0.5, 0.8), fused=False)
    module, data = stage(kind, optimizer=other)
    if isinstance(module, VQGANTraining):
        assert module.adversary is not None
        module.adversary.optimizer = other
    run_training(tmp_path, module, data, config_for(kind), resume_from=last(tmp_path))
    states = torch.load(last(tmp_path), weights_only=True)["optimizer_states"]
    assert len(states) == (2 if kind == "vqgan" else 1)
    for state in states:
        found = [(g["weight_decay"], g["betas"], g["fused"]) for g in state["param_groups"]]
        assert found == [(0.3, (0.5, 0.8), False), (0.0, (0.5, 0.8), False)]


def test_a_resumed_run_has_the_patience_it_is_given(tmp_path: Path) -> None:
    module, data = stage("transformer", patience=5)
    run_training(tmp_path, module, data, config_for("transformer"), interrupt_at=4)
    watched = torch.load(last(tmp_path), weights_only=True)["overfitting"]
    assert (watched["patience"], watched["best_step"]) == (5, 3)
    module, data = stage("transformer", patience=2)
    module.on_load_checkpoint(torch.load(last(tmp_path), weights_only=True))
    assert vars(module)["overfitting"] == OverfittingWatch(**{**watched, "patience": 2})


def test_resuming_after_a_crash_repeats_no_row(tmp_path: Path) -> None:
    module, data = stage("transformer")
    update = module.update

    def crash() -> None:
        if module.step == 5:
            raise RuntimeError("the machine stopped")
        update()

    module.update = crash  # type: ignore[method-assign]
    config = config_for("transformer")  # validates and saves after step 3
    with pytest.raises(RuntimeError, match="the machine stopped"):
        run_training(tmp_path, module, data, config)
    assert torch.load(last(tmp_path), weights_only=True)["step"] == 3
    module, data = stage("transformer")
    run_training(tmp_path, module, data, config, resume_from=last(tmp_path))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_interrupted_run_is_whole_and_gives_the_signal_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    module, data = stage("vqgan", accumulate=2)
    config = config_for("vqgan", accumulate=2)
    result, recorder = run_training(tmp_path, module, data, config, interrupt_at=2)
    assert (result.step, result.interrupted) == (2, True)
    assert len(data.trained_on(2 * 2)) == 2 * 2 * 4
    assert recorder.finished == 1
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    content = torch.load(last(tmp_path), weights_only=True)
    assert content["step"] == 2
    assert VQGAN.from_pretrained(tmp_path).codebook_size == 8


def test_a_schedulers_request_ends_the_run_too(tmp_path: Path) -> None:
    module, data = stage("transformer")
    update = module.update

    def terminate() -> None:
        update()
        if module.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    module.update = terminate  # type: ignore[method-assign]
    result, _ = run_training(tmp_path, module, data, config_for("transformer"))
    assert (result.step, result.interrupted) == (2, True)


def test_on_a_cpu_products_stay_exact(tmp_path: Path) -> None:
    module, data = stage("transformer", max_steps=1)
    run_training(tmp_path, module, data, config_for("transformer", max_steps=1))
    assert torch.get_float32_matmul_precision() == "highest"


def test_max_time_ends_between_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from taming.training import callbacks

    module, data = stage("transformer", accumulate=2)
    seconds = SimpleNamespace(monotonic=lambda: 10.0 * module.step)
    monkeypatch.setattr(callbacks, "time", seconds)
    config = config_for("transformer", accumulate=2, max_time="25s")
    result, _ = run_training(tmp_path, module, data, config)
    assert (result.step, result.interrupted) == (3, False)
    assert torch.load(last(tmp_path), weights_only=True)["step"] == 3


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match=r"nothing to resume: .*last\.ckpt does not exist"):
        check_resume(tmp_path, 8, "generator")
    module, data = stage("transformer", max_steps=2)
    run_training(tmp_path, module, data, config_for("transformer", max_steps=2))
    with pytest.raises(UserError, match=r"has done 2 steps, .* trainer\.max_steps=4"):
        check_resume(tmp_path, 2, "generator")
    assert check_resume(tmp_path, 3, "generator") == last(tmp_path)
    with pytest.raises(UserError, match="holds a generator, where a vqgan is needed"):
        check_resume(tmp_path, 3, "vqgan")
    content = last(tmp_path).read_bytes()
    last(tmp_path).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"last\.ckpt .*incomplete"):
        check_resume(tmp_path, 8, "generator")
