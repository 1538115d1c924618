"""One training step of each stage on a GPU computes what it does on the CPU."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    ByConvolution,
    backward,
    image_data,
    run_training,
    stage,
    tiny_adversary,
    token_data,
    transformer_training,
    vqgan_training,
    without_trainer,
)

from taming.runtime.contexts import full_precision
from taming.training import WholeFileCheckpointIO, execution
from taming.training.execution import choose_execution
from taming.training.strategies import ShardedStrategy

DEVICE = "cuda"
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Float32 and not TF32."""
    with full_precision():
        yield


def build(stage: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """A module past the start of its discriminator, and a batch."""
    torch.manual_seed(0)
    if stage == 1:
        module = without_trainer(vqgan_training(tiny_adversary()), 4)
        batch = {"images": torch.rand(4, 3, 16, 16) * 2 - 1}
        module.vqgan(batch["images"])  # the codebook starts from latents drawn at random
        return module, batch
    module = without_trainer(transformer_training(), 4).eval()  # no dropout, which draws otherwise
    return module, {"indices": torch.randint(8, (4, 8, 8)), "labels": torch.arange(4) % 3}


@pytest.mark.parametrize("stage", [1, 2])
def test_losses_and_gradients_are_those_of_the_cpu(stage: int) -> None:
    results = []
    for device in ("cpu", DEVICE):
        module, batch = build(stage)
        module.to(device)
        losses = backward(module, {name: x.to(device) for name, x in batch.items()})
        assert all(x.device.type == device for x in losses.values())
        results.append((losses, {n: p.grad for n, p in module.named_parameters()}))
    (losses, gradients), (other_losses, other_gradients) = results
    assert losses.keys() == other_losses.keys() and gradients.keys() == other_gradients.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(other_losses[name].cpu(), loss, rtol=1e-4, atol=1e-6)
    for name, gradient in gradients.items():
        if gradient is not None:
            torch.testing.assert_close(other_gradients[name].cpu(), gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("stage", [1, 2])
def test_a_run_of_a_few_steps(stage: int, precision: Any, tmp_path: Path) -> None:
    module: Any = vqgan_training(tiny_adversary()) if stage == 1 else transformer_training()
    data = image_data() if stage == 1 else token_data()
    weights = {
        name: (p, p.detach().clone())
        for name, p in module.named_parameters()
        if p.requires_grad and p.ndim > 1  # biases before a normalisation do nothing
    }
    result = run_training(
        tmp_path, module, data, val_check_interval=8, accelerator="gpu", precision=precision
    ).result
    assert result.step == 8 and (tmp_path / "model" / "config.json").is_file()
    assert all(math.isfinite(value) for value in result.metrics.values())
    unchanged = [name for name, (now, then) in weights.items() if torch.equal(now.cpu(), then)]
    assert unchanged == []


def test_the_tokenizer_moves_along_under_fsdp(tmp_path: Path) -> None:
    """It is not split, so FSDP leaves it alone; the picture of a validation needs it."""
    settings: dict[str, Any] = {"strategy": ShardedStrategy(), "ema_decay": None}
    try:
        run_training(
            tmp_path, *stage("transformer"), val_check_interval=8, accelerator="gpu", **settings
        )
    finally:
        torch.distributed.destroy_process_group()
    assert list(tmp_path.rglob("samples_*.png"))


def test_ways_to_compute_a_step_are_timed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(execution, "TIMED_SECONDS", 0.01)
    monkeypatch.setattr(execution, "EAGER_FROM", 0.0)
    caplog.set_level("INFO", "taming")
    module, data = stage("vqgan")
    module.perceptual = ByConvolution()  # frozen networks move with what is timed
    module.set_execution(channels_last="auto", compile=False)
    device = torch.device(DEVICE, torch.cuda.current_device())
    choose_execution("auto", module, data.first_batch, device, num_batches=500)
    assert all(parameter.device.type == "cpu" for parameter in module.parameters())
    assert "bf16-mixed, channels_last" in caplog.text and "; bf16-mixed " in caplog.text


def test_later_steps_do_not_change_a_queued_checkpoint(tmp_path: Path) -> None:
    weight = torch.arange(6.0, device=DEVICE).view(2, 3).t()
    files = WholeFileCheckpointIO()
    files.save_checkpoint({"weight": weight}, tmp_path / "last.ckpt")
    weight.zero_()
    saved = files.load_checkpoint(tmp_path / "last.ckpt", map_location="cpu")["weight"]
    assert torch.equal(saved, torch.arange(6.0).view(2, 3).t())
