"""The average of the weights, and the optimizer that moves them."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import image_data, run_training, stage, tiny_vqgan, vqgan_training
from torch import nn

from taming.training import OptimizerConfig, WarmEMA
from taming.training.optimizer import build_optimizer


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(5.0))
        self.register_buffer("count", torch.tensor(0))


def walk(model: Model, average: WarmEMA, values: list[float], first_step: int = 1) -> Model:
    """Moves the weight in steps of two batches each; returns the averaged model."""
    for step, value in enumerate(values, first_step):
        for finished in (step - 1, step):
            if finished == step:
                nn.init.constant_(model.weight, value)
            model.count += 1
            trainer: Any = SimpleNamespace(global_step=finished)
            average.on_train_batch_end(trainer, model, None, None, 0)
    return average._average_model.module


def set_up(model: L.LightningModule, decay: float, device: str = "cpu") -> WarmEMA:
    average = WarmEMA(decay)
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer: Any = SimpleNamespace(strategy=strategy)
    average.setup(trainer, model, "fit")
    return average


def test_average_in_closed_form_and_copied_buffers() -> None:
    model = Model()
    values = [1.0, -2.0, 4.0, 0.5, 3.0]
    averaged = walk(model, set_up(model, 0.3), values)
    expected = 5.0
    for n, value in enumerate(values):
        decay = min(0.3, (1 + n) / (10 + n))  # 0.1, 0.18, 0.25, 0.3, 0.3
        expected = decay * expected + (1 - decay) * value
    assert averaged.weight.item() == pytest.approx(expected, rel=1e-6)
    assert averaged.count == model.count == 10


def test_reloaded_average_continues() -> None:
    model = Model()
    average = set_up(model, 0.9)
    walk(model, average, [1.0, 2.0, 3.0])
    checkpoint = {"state_dict": copy.deepcopy(model.state_dict())}
    average.on_save_checkpoint(SimpleNamespace(), model, checkpoint)
    resumed = Model()
    reloaded = set_up(resumed, 0.9)
    reloaded.on_load_checkpoint(SimpleNamespace(), resumed, copy.deepcopy(checkpoint))
    reloaded.load_state_dict(average.state_dict())
    assert resumed.weight == 3.0
    ends = [walk(m, a, [4.0, 5.0], 4).weight for m, a in ((model, average), (resumed, reloaded))]
    assert torch.equal(*ends)


class WatchCodes(L.Callback):
    """Compares the codes that a step has moved with their averages."""

    def __init__(self) -> None:
        self.num_moved: list[int] = []
        self.step = 0
        self.moved = torch.zeros(512, dtype=torch.bool)  # by earlier batches of the step

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        quantizer = pl_module.vqgan.quantizer
        assert quantizer.moved[self.moved].all()
        if trainer.global_step == self.step:  # between accumulated batches
            self.moved = quantizer.moved.clone()
            return
        self.step, self.moved = trainer.global_step, torch.zeros_like(self.moved)
        (average,) = (c for c in trainer.callbacks if isinstance(c, WarmEMA))
        averaged = average._average_model.module.vqgan.quantizer.codebook
        assert torch.equal(averaged[quantizer.moved], quantizer.codebook[quantizer.moved])
        self.num_moved.append(int(quantizer.moved.sum()))


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("ema_decay", [None, 0.9])
def test_the_average_takes_over_codes_that_move(
    tmp_path: Path, batches: int, ema_decay: float | None
) -> None:
    """Between its old and its new place a code is near no latent, and looks unused."""
    torch.manual_seed(0)
    vqgan = tiny_vqgan(codebook_size=512, revive_after=20, ema_decay=ema_decay)
    watch = WatchCodes()
    accumulated = {"accumulate_grad_batches": batches, "max_steps": 26, "callbacks": [watch]}
    run_training(tmp_path, vqgan_training(vqgan=vqgan), image_data(), **accumulated)
    assert watch.num_moved[0] > 0 == watch.num_moved[5] < max(watch.num_moved[6:])  # starts; later


def test_the_average_is_on_the_device_of_the_training() -> None:
    model = Model()
    average = set_up(model, 0.9, device="meta")._average_model  # Lightning moves the model later
    assert (average.module.weight.is_meta, model.weight.is_meta) == (True, False)


def test_average_has_the_memory_format_of_the_weights() -> None:
    module, _ = stage("vqgan", channels_last=True)
    average = set_up(module, 0.9)  # before the module, as Lightning does
    averaged = average._average_model.module.parameters()
    assert all(a.stride() == w.stride() for a, w in zip(averaged, module.parameters(), strict=True))


def test_a_learning_rate_rises_and_falls_as_a_cosine() -> None:
    config = OptimizerConfig(1.0, warmup_steps=4, schedule="cosine", final_fraction=0.1)
    rates = [config.factor(step, 14) for step in range(16)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[9] == pytest.approx(0.55)  # half way
    assert rates[14:] == pytest.approx([0.1, 0.1])  # and never rises again
    assert rates[4:] == sorted(rates[4:], reverse=True)
    constant = OptimizerConfig(0.5, warmup_steps=2)
    assert [constant.factor(step, 10) for step in (0, 1, 2, 9)] == [0.5, 1.0, 1.0, 1.0]


def test_weight_decay_is_for_trained_matrices_only() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.Linear(4, 4))
    model[2].requires_grad_(False)
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.2, betas=(0.5, 0.9))
    groups = config.parameter_groups(model, prefix="x_")
    actual = [(g["weight_decay"], len(g["params"]), g["betas"], g["prefix"]) for g in groups]
    assert actual == [(0.2, 1, (0.5, 0.9), "x_"), (0.0, 3, (0.5, 0.9), "x_")]


def built(fused: bool, **settings: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    config = OptimizerConfig(learning_rate=0.1, **settings)
    return layer, build_optimizer(config.parameter_groups(layer), fused=fused)


@pytest.mark.parametrize("fused", [True, False])
def test_optimizer_keeps_its_settings_when_it_loads_a_state(fused: bool) -> None:
    first, saved = built(not fused)
    layer, optimizer = built(fused, weight_decay=0.5, betas=(0.1, 0.2))
    for one in (first, layer):
        one(torch.ones(1, 3)).sum().backward()
    saved.step()
    before, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    optimizer.load_state_dict(saved.state_dict())
    groups = [(g["weight_decay"], g["betas"], bool(g["fused"])) for g in optimizer.param_groups]
    assert groups == [(0.5, (0.1, 0.2), fused), (0.0, (0.1, 0.2), fused)]
    optimizer.step()  # the second: its gradients are 1, and so were those of the first
    # moments 0.9·0.1 → 0.1·0.1 + 0.9 and 0.05 → 0.2·0.05 + 0.8, corrected by 1 - 0.1² and 1 - 0.2²
    moved = 0.1 * (0.91 / 0.99) / (0.81 / 0.96) ** 0.5
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.1 * 0.5) - moved)
    torch.testing.assert_close(layer.bias.detach(), bias - moved)


@pytest.mark.parametrize("fused", [True, False])
def test_optimizer_continues_in_another_memory_format(fused: bool) -> None:
    """Fused AdamW takes the moments in the order of memory, whatever their strides say."""
    formats = (torch.contiguous_format, torch.channels_last)
    config = OptimizerConfig(learning_rate=0.1)
    torch.manual_seed(0)
    start, gradients = torch.randn(4, 3, 2, 2), torch.randn(2, 4, 3, 2, 2)
    for before, after in (formats, formats[::-1]):
        results = []
        for other in (before, after):  # without the change, and with it
            state: dict[str, Any] | None = None
            weight = start
            for memory_format, gradient in zip((before, other), gradients, strict=True):
                layer = nn.Conv2d(3, 4, 2, bias=False).to(memory_format=memory_format)
                layer.weight.data.copy_(weight)
                optimizer = build_optimizer(config.parameter_groups(layer), fused=fused)
                if state is not None:
                    optimizer.load_state_dict(state)
                layer.weight.grad = gradient.contiguous(memory_format=memory_format)
                optimizer.step()
                state, weight = optimizer.state_dict(), layer.weight.detach()
            results.append(weight)
        torch.testing.assert_close(results[1], results[0])
