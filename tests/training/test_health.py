import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    image_data,
    run_training,
    tiny_adversary,
    tiny_vqgan,
    trainer_config,
    vqgan_training,
)

from taming.errors import UserError
from taming.quantizers import KINDS, QuantizerOutput
from taming.training.health import AGAINST_COLLAPSE, CodebookWindow, HealthWatch, unusual_data
from taming.vqgan import VQGAN

MONITOR = "val/reconstruction_loss"
HEALTHY = {
    "train/codebook_usage": 0.9,
    "train/codebook_perplexity": 800.0,
    "train/discriminator_accuracy": 0.7,
    "train/generator_loss": 0.1,
    "train/adaptive_weight": 1.0,
    "train/gradient_norm": 1.0,
}


def quantized(indices: list[int], codebook_size: int) -> QuantizerOutput:
    chosen = torch.tensor(indices).view(1, 1, -1)
    counts = torch.bincount(chosen.flatten(), minlength=codebook_size)
    return QuantizerOutput(torch.zeros(1, 1, 1, len(indices)), chosen, {}, counts)


def test_usage_is_over_a_window_of_eight_latents_a_code() -> None:
    window = CodebookWindow(codebook_size=4)
    for _ in range(3):
        window.update(quantized([0, 0, 0, 0, 0, 0, 0, 1], 4))
    assert window.compute_if_full() == {}  # 24 latents of the 32 it takes
    window.update(quantized([2] * 8, 4))
    metrics = window.compute_if_full()
    assert metrics["codebook_usage"] == 0.75
    frequencies = [21 / 32, 3 / 32, 8 / 32]
    entropy = -sum(f * math.log(f) for f in frequencies)
    assert metrics["codebook_perplexity"] == pytest.approx(math.exp(entropy))
    window.update(quantized([3] * 32, 4))  # the next window has forgotten the first
    assert window.compute_if_full()["codebook_usage"] == 0.25


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"train/codebook_usage": 0.1}, "codebook is collapsing: 10.0% of the codes"),
        ({"train/discriminator_accuracy": 0.99}, "discriminator has won: it is right about 99.0%"),
        ({"train/adaptive_weight": 1e4}, "gradient of the discriminator has all but vanished"),
        ({"train/adaptive_weight": 1e-5}, "of the reconstruction loss has all but vanished"),
    ],
)
def test_a_trouble_is_told_once_it_lasts(trouble: dict[str, float], words: str) -> None:
    watch = HealthWatch(patience=2)
    assert watch.check(HEALTHY) == []
    assert watch.check(HEALTHY | trouble) == []
    (warning,) = watch.check(HEALTHY | trouble)
    assert words in warning
    assert watch.check(HEALTHY | trouble) == []  # told already
    assert watch.check(HEALTHY) == []
    assert watch.check(HEALTHY | trouble) == []
    assert len(watch.check(HEALTHY | trouble)) == 1  # it was away, and is back


@pytest.mark.parametrize(
    ("quantizer", "frozen", "words"),
    [
        ("vector", False, {"cosine", "codebook_dim", "revive_after", "codebook_size"}),
        ("gumbel", False, {"kl_weight", "temperature_end", "codebook_size"}),
        ("finite_scalar", False, {"levels"}),
        ("vector", True, {"new_codebook"}),
    ],
)
def test_the_cure_of_a_collapse_is_one_its_quantizer_has(
    quantizer: str, frozen: bool, words: set[str]
) -> None:
    trouble = HEALTHY | {"train/codebook_usage": 0.1}
    (warning,) = HealthWatch(patience=1).check(trouble, quantizer=quantizer, frozen=frozen)
    settings = {
        "cosine", "codebook_dim", "revive_after", "codebook_size", "kl_weight", "temperature_end",
        "levels", "new_codebook",
    }  # fmt: skip
    assert {name for name in settings if name in warning} == words
    assert AGAINST_COLLAPSE.keys() == KINDS.keys()


def test_the_training_says_what_its_codebook_is() -> None:
    trouble = HEALTHY | {"train/codebook_usage": 0.1}
    module = vqgan_training(health=HealthWatch(patience=1), trained="decoder")
    (warning,) = module.check_health(trouble)
    assert "finetune.mode=new_codebook" in warning


def test_attention_in_no_level_is_remarked_upon() -> None:
    data: Any = Data(torch.rand(4, 3, 16, 16), 4)

    def remarks(*attention: int) -> list[str]:
        config = {**tiny_vqgan().config, "attention_resolutions": attention}
        return unusual_data(data, VQGAN(**config))

    (remark,) = remarks(32, 4)
    assert "attention_resolutions=[32, 4] gives no level attention" in remark
    assert "heights 16, 8" in remark
    assert remarks() == remarks(8) == remarks(32, 8) == []


def test_a_discriminator_that_learns_alone_may_be_right() -> None:
    watch = HealthWatch(patience=1)
    alone = {name: v for name, v in HEALTHY.items() if name != "train/generator_loss"}
    assert watch.check(alone | {"train/discriminator_accuracy": 1.0}) == []


def test_a_leap_of_the_gradient_is_told_at_once() -> None:
    watch = HealthWatch(max_gradient_leap=10)
    for norm in (1.0, 2.0, 3.0, 2.0, 25.0):  # fewer than five before: nothing is usual yet
        assert watch.check({"train/gradient_norm": norm}) == []
    assert watch.check({"train/gradient_norm": 19.0}) == []  # the median is 2
    (warning,) = watch.check({"train/gradient_norm": 30.0})
    assert "leapt to 30, from 2.5 before" in warning


def test_a_collapse_reaches_user_and_trackers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    module = vqgan_training(health=HealthWatch(min_codebook_usage=1.01, patience=2), max_steps=4)
    _, recorder = run_training(
        tmp_path, module, image_data(), trainer_config(max_steps=4, monitor=MONITOR)
    )
    ((text, step),) = recorder.alerts
    assert step == 2
    assert "codebook is collapsing" in text
    assert "warning, step 2: the codebook is collapsing" in caplog.text
    assert [value for _, value in recorder.column("train/warnings")] == [0, 1, 1, 1]
    assert [step for step, _ in recorder.column("train/codebook_usage")] == [1, 2, 3, 4]


def test_nan_ends_the_run_and_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = vqgan_training()
    data = image_data()
    backward = module.backward_losses

    def broken(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        losses = backward(batch)
        if module.step == 4:  # in the fifth step a gradient, and with it a weight, becomes NaN
            module.vqgan.last_layer.grad.view(-1)[0] = math.nan  # type: ignore[union-attr]
        return losses

    module.backward_losses = broken  # type: ignore[method-assign]
    # neither the reports, one in a hundred steps, nor the losses would show it before the save
    config = trainer_config(val_every=3, log_every=100, monitor=MONITOR)
    with pytest.raises(UserError, match=r"a gradient became NaN or infinite before step 6"):
        run_training(tmp_path, module, data, config)
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["step"] == 3
    assert all(t.isfinite().all() for t in saved["model"]["state"].values())


class Data:
    def __init__(self, images: torch.Tensor, batch_size: int) -> None:
        self.train_dataset = [{"images": image} for image in images]
        self.batch_size = batch_size


def test_unusual_data_is_remarked_upon() -> None:
    vqgan = tiny_vqgan(codebook_size=200)  # 8×8 codes an image
    images = torch.rand(4, 3, 16, 16)

    def remarks(images: torch.Tensor, batch_size: int) -> list[str]:
        data: Any = Data(images, batch_size)
        return unusual_data(data, vqgan)

    assert remarks(images, 4) == []
    (few,) = remarks(images, 5)
    assert "4 training images make less than a batch of 5" in few
    (codes,) = remarks(images[:3], 1)
    assert "192 latents in all, fewer than the 200 codes" in codes
    (flat,) = remarks(torch.rand(4, 3, 1, 1).expand(4, 3, 16, 16), 4)
    assert "each of a single colour" in flat


def test_a_resumed_watch_goes_on_where_it_was() -> None:
    trouble = HEALTHY | {"train/codebook_usage": 0.1}
    first, second = HealthWatch(patience=3), HealthWatch(patience=3)
    for _ in range(2):
        assert first.check(trouble) == []
    second.load_state_dict(first.state_dict())
    assert len(second.check(trouble)) == 1
    window, resumed = CodebookWindow(4), CodebookWindow(4)
    window.update(quantized([0] * 31, 4))
    resumed.load_state_dict(window.state_dict())
    resumed.update(quantized([1], 4))
    assert resumed.compute_if_full()["codebook_usage"] == 0.5


def test_a_discriminator_that_is_never_heard_is_remarked_upon() -> None:
    assert tiny_adversary(start=5, warmup=2).remarks(max_steps=8) == []
    (remark,) = tiny_adversary(start=5, warmup=3).remarks(max_steps=8)
    assert "after step 8" in remark
    assert "ends at step 8: it never will" in remark
    assert "Set adversary.warmup=0 and adversary.ramp=1" in remark
