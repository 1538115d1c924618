import copy
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import (
    image_data,
    run_training,
    tiny_adversary,
    tiny_vqgan,
    token_data,
    transformer_training,
    vqgan_training,
)

from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN
from taming.training import HealthWatch, OverfittingWatch, WholeFileCheckpointIO
from taming.training.health import unusual_data, unusual_schedule

HEALTHY = {
    "codebook_usage": 0.9,
    "codebook_perplexity": 800.0,
    "discriminator_accuracy": 0.7,
    "generator_loss": 0.1,
    "adaptive_weight": 1.0,
    "gradient_norm": 1.0,
}


def test_usage_needs_eight_latents_per_code() -> None:
    module, resumed = vqgan_training(), vqgan_training()
    for _ in range(3):
        module.codebook_window.update(torch.tensor([15, 1, 0, 0, 0, 0, 0, 0]))
    assert module.training_metrics() == {}  # 48 latents of the 64 it takes
    resumed.codebook_window.counts = module.codebook_window.counts.clone()
    for one in (module, resumed):
        one.codebook_window.update(torch.tensor([0, 0, 16, 0, 0, 0, 0, 0]))
        metrics = one.training_metrics()
        assert metrics["codebook_usage"] == 3 / 8
        entropy = -sum(f * math.log(f) for f in (45 / 64, 3 / 64, 16 / 64))
        assert metrics["codebook_perplexity"] == pytest.approx(math.exp(entropy))
        one.codebook_window.update(torch.tensor([64, 0, 0, 0, 0, 0, 0, 0]))
        assert one.training_metrics()["codebook_usage"] == 1 / 8  # the first window is forgotten


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"codebook_usage": 0.1}, "codebook is collapsing: 10.0% of the codes"),
        ({"discriminator_accuracy": 0.99}, "discriminator has won: it classifies 99.0%"),
        ({"adaptive_weight": 1e4}, "gradient of the discriminator has almost vanished"),
        ({"adaptive_weight": 1e-5}, "of the reconstruction loss has almost vanished"),
    ],
)
def test_a_lasting_problem_gives_one_warning(trouble: dict[str, float], words: str) -> None:
    watch = HealthWatch(patience=2)
    assert watch.check(HEALTHY, "") == []
    assert watch.check(HEALTHY | trouble, "") == []
    resumed = HealthWatch(patience=2)
    resumed.load_state_dict(copy.deepcopy(watch.state_dict()))
    for one in (watch, resumed):
        (warning,) = one.check(HEALTHY | trouble, "the cure")
        assert words in warning
        assert ("the cure" in warning) is ("codebook_usage" in trouble)
    assert watch.check(HEALTHY | trouble, "") == []  # told already
    assert watch.check(HEALTHY, "") == []
    assert watch.check(HEALTHY | trouble, "") == []
    assert len(watch.check(HEALTHY | trouble, "")) == 1  # it was away, and is back


def test_no_warning_before_the_generator_uses_the_discriminator() -> None:
    metrics = {name: v for name, v in HEALTHY.items() if name != "generator_loss"}
    assert HealthWatch(patience=1).check(metrics | {"discriminator_accuracy": 1.0}, "") == []


def test_a_leap_of_the_gradient_gives_a_warning_at_once() -> None:
    watch = HealthWatch(max_gradient_leap=10)
    for norm in (1.0, 2.0, 3.0, 2.0, 25.0):  # fewer than five before: nothing is usual yet
        assert watch.check({"gradient_norm": norm}, "") == []
    assert watch.check({"gradient_norm": 19.0}, "") == []  # the median is 2
    (warning,) = watch.check({"gradient_norm": 30.0}, "")
    assert "leapt from 2.5 to 30" in warning


@pytest.mark.parametrize(
    ("trained", "cure"), [("all", "revive_after"), ("decoder", "finetune.mode=new_codebook")]
)
def test_a_collapse_reaches_the_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trained: str, cure: str
) -> None:
    watch = HealthWatch(min_codebook_usage=1.01, patience=2)
    changes: dict[str, Any] = {"max_steps": 4, "callbacks": [watch]}
    module = vqgan_training(trained=trained)
    recorder = run_training(tmp_path, module, image_data(), **changes).recorder
    (message,) = [text for text in caplog.messages if "collapsing" in text]
    assert message.startswith("warning, step 2: the codebook is collapsing") and cure in message
    assert [value for _, value in recorder.column("train/warnings")] == [0, 1, 1, 1]
    assert [step for step, _ in recorder.column("train/codebook_usage")] == [1, 2, 3, 4]


class Poison(L.Callback):
    """In the fifth step a gradient, and with it a weight, becomes NaN."""

    def on_after_backward(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.global_step == 4:
            pl_module.vqgan.last_layer.grad.view(-1)[0] = math.nan


def test_nan_ends_the_run_and_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = WholeFileCheckpointIO._write
    monkeypatch.setattr(  # a slow disk
        WholeFileCheckpointIO, "_write", lambda *args: (time.sleep(0.2), write(*args))
    )
    # neither the reports, one in a hundred steps, nor the losses would show it before the save
    changes: dict[str, Any] = {"log_every_n_steps": 100, "callbacks": [Poison()]}
    with pytest.raises(UserError, match=r"a gradient became NaN or infinite before step 7"):
        run_training(tmp_path, vqgan_training(), image_data(), **changes)
    for path in (tmp_path / "checkpoints").iterdir():
        saved = torch.load(path, weights_only=True)
        assert saved["global_step"] == 3
        assert all(t.isfinite().all() for t in saved["model"]["state"].values())


# --- overfitting --------------------------------------------------------------------------------


def test_overfitting_gives_one_warning_and_only_while_training_improves() -> None:
    watch = OverfittingWatch(patience=2)
    losses = [(2.0, 3.0), (1.9, 2.5), (1.5, 2.6), (1.2, 2.8), (1.0, 2.9)]
    warnings = [watch.check(step, *pair) for step, pair in enumerate(losses)]
    assert [text is not None for text in warnings] == [False, False, False, True, False]
    for part in ("since step 1", "2.5000 to 2.8000", "1.9000 to 1.2000", "best.ckpt keeps step 1"):
        assert part in str(warnings[3])
    resumed = OverfittingWatch(patience=1)  # a run goes on with the patience it is given
    resumed.load_state_dict(watch.state_dict())
    assert resumed.check(5, 0.9, 3.0) is None  # it has warned already
    resumed.load_state_dict({**watch.state_dict(), "has_warned": False})
    assert "since step 1" in str(resumed.check(5, 0.9, 3.0))
    late = OverfittingWatch(patience=2)  # the training loss is better only in the fourth
    for step, pair in enumerate([(2.0, 2.0), (1.9, 2.5), (2.1, 2.6)]):
        assert late.check(step, *pair) is None
    assert late.check(3, 1.5, 2.8) is not None
    noisy = OverfittingWatch(patience=1)  # both get worse: that is divergence, not overfitting
    assert noisy.check(0, 1.0, 1.0) is None
    assert noisy.check(1, 1.5, 2.0) is None


def test_overfitting_reaches_the_user_of_a_resumed_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    losses = []
    for max_steps in (2, 4):
        torch.manual_seed(0)
        data = token_data()  # what is learned by heart makes validation worse
        data.train_dataset.tensors["indices"] = torch.full((10, 8, 8), 3)
        data.val_dataset.tensors["indices"] = torch.full((7, 8, 8), 5)
        changes = {"resume": max_steps == 4, "max_steps": max_steps, "val_check_interval": 1}
        changes |= {"ema_decay": None, "callbacks": [OverfittingWatch(patience=2)]}
        run = run_training(tmp_path, transformer_training(), data, **changes)
        losses += [value for _, value in run.recorder.column("val/loss")]
    assert losses == sorted(losses)  # the first is the best
    (message,) = [text for text in caplog.messages if "overfitting: since" in text]
    assert message.startswith("warning, step 3: overfitting: since step 1 the validation loss has")
    assert f"from {losses[0]:.4f} to {losses[2]:.4f}" in message


# --- before the start ---------------------------------------------------------------------------


def remarks(images: torch.Tensor, batch_size: int = 4, **changes: Any) -> list[str]:
    items = [{"images": image} for image in images]
    data = SimpleNamespace(train_dataset=items, batch_size=batch_size)
    return unusual_data(data, VQGAN(**{**tiny_vqgan(codebook_size=200).config, **changes}))


def test_notes_on_unusual_data() -> None:
    images = torch.rand(4, 3, 16, 16)
    assert remarks(images) == []
    (few,) = remarks(images, 5)
    assert "4 training images are fewer than a batch of 5" in few
    (codes,) = remarks(images[:3], 1)
    assert "192 latents in all, fewer than the 200 codes" in codes
    (flat,) = remarks(torch.rand(4, 3, 1, 1).expand(4, 3, 16, 16))
    assert "has a single colour" in flat
    (attention,) = remarks(images, attention_resolutions=[32, 4])
    assert "attention_resolutions=[32, 4] matches no level" in attention
    assert "heights 16, 8" in attention
    assert remarks(images, attention_resolutions=[32, 8]) == []


def test_note_on_a_discriminator_that_never_matters() -> None:
    assert unusual_schedule(None, 8) == []
    assert unusual_schedule(tiny_adversary(start=5, warmup=2), 8) == []
    (remark,) = unusual_schedule(tiny_adversary(start=5, warmup=3), 8)
    assert "never influences the generator: it would after step 8" in remark
    assert "ends at step 8" in remark
