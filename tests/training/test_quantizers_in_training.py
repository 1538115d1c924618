from typing import Any

import pytest
import torch
from tiny_training import Gradients, alone, backward

from taming.training import OptimizerConfig, VQGANTraining
from taming.vqgan import VQGAN


def training(**quantizer: Any) -> VQGANTraining:
    vqgan = VQGAN(
        quantizer=quantizer,
        resolution=16,
        base_channels=4,
        channel_multipliers=[1, 2],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=4,
    )
    optimizer = OptimizerConfig(learning_rate=1e-2)
    return alone(VQGANTraining(vqgan, Gradients(), None, optimizer=optimizer))


def batch() -> dict[str, torch.Tensor]:
    return {"images": torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1}


def test_a_quantizer_without_losses_trains() -> None:
    module = training(kind="finite_scalar", levels=[5, 4, 3])
    backward(module, batch())
    gradients = [parameter.grad for parameter in module.vqgan.encoder.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.abs().sum() > 0 for gradient in gradients)


def test_the_quantizer_hears_of_the_step() -> None:
    module = training(
        kind="gumbel",
        codebook_size=8,
        codebook_dim=4,
        temperature_end=0.5,
        temperature_steps=4,
        temperature_schedule="linear",
    )
    for step, temperature in ((0, 1.0), (2, 0.75), (9, 0.5)):  # of a resumed run just as well
        assert backward(alone(module, step), batch())["kl_loss"] > 0
        assert module.vqgan.quantizer.temperature.item() == pytest.approx(temperature)


def test_an_averaged_codebook_is_not_given_to_the_optimizer() -> None:
    module = training(kind="vector", codebook_size=8, codebook_dim=4, ema_decay=0.9, init="kmeans")
    backward(module, batch())
    optimizer = module.configure_optimizers()["optimizer"]
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    names = {name for name, p in module.vqgan.named_parameters() if id(p) not in optimized}
    assert names == {"quantizer.codebook"}
