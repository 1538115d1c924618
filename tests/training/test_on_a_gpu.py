"""One training step of each stage on a GPU computes what it does on the CPU."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_training import (
    FakeData,
    image_data,
    run_training,
    tiny_adversary,
    token_data,
    trainer_config,
    transformer_training,
    vqgan_training,
)

from taming.contexts import full_precision
from taming.training.module import TrainingModule

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Float32 and not TF32."""
    with full_precision():
        yield


def build(stage: int) -> tuple[TrainingModule, dict[str, torch.Tensor]]:
    """A module without a trainer, past the start of its discriminator, and a batch."""
    torch.manual_seed(0)
    module: TrainingModule
    if stage == 1:
        module = vqgan_training(tiny_adversary()).train()
        batch = {"images": torch.rand(4, 3, 16, 16) * 2 - 1}
        module.vqgan(batch["images"])  # the codebook starts from latents drawn at random
    else:
        module = transformer_training(ema_decay=None).eval()  # no dropout, which draws otherwise
        batch = {"indices": torch.randint(8, (4, 8, 8)), "labels": torch.arange(4) % 3}
    module.step = 4
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[method-assign]
    return module, batch


@pytest.mark.parametrize("stage", [1, 2])
def test_losses_and_gradients_are_those_of_the_cpu(stage: int) -> None:
    results = []
    for device in ("cpu", DEVICE):
        module, batch = build(stage)
        module.to(device)
        losses = module.backward_losses({name: x.to(device) for name, x in batch.items()})
        assert all(x.device.type == device for x in losses.values())
        gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        assert gradients
        results.append((losses, gradients))
    (losses, gradients), (other_losses, other_gradients) = results
    assert losses.keys() == other_losses.keys() and gradients.keys() == other_gradients.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(other_losses[name].cpu(), loss, rtol=1e-4, atol=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(other_gradients[name].cpu(), gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("stage", [1, 2])
def test_a_run_of_a_few_steps(stage: int, precision: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module: TrainingModule = vqgan_training(tiny_adversary())
    data: FakeData = image_data()
    monitor = "val/pixel_loss"
    if stage == 2:
        module, data, monitor = transformer_training(), token_data(), "val/loss"
    config = trainer_config(val_every=8, accelerator="gpu", precision=precision, monitor=monitor)
    weights = {
        name: (p, p.detach().clone())
        for name, p in module.named_parameters()
        if p.requires_grad and p.ndim > 1  # biases before a normalisation do nothing
    }
    result, _ = run_training(tmp_path, module, data, config)
    assert result.step == 8 and (tmp_path / "model" / "config.json").is_file()
    assert math.isfinite(result.metrics[monitor])
    unchanged = [name for name, (now, then) in weights.items() if torch.equal(now.cpu(), then)]
    assert unchanged == []
