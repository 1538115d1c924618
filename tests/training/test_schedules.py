from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn

from taming.discriminators import PatchDiscriminator
from taming.errors import UserError
from taming.training import Adversary, OptimizerConfig, TrainerConfig
from taming.training.callbacks import parse_duration
from taming.training.health import OverfittingWatch


def test_learning_rate_rises_and_falls_as_a_cosine() -> None:
    config = OptimizerConfig(
        learning_rate=1.0, warmup_steps=4, schedule="cosine", final_fraction=0.1
    )
    rates = [config.learning_rate_at(step, 14) for step in range(16)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[9] == pytest.approx(0.55)  # half way
    assert rates[14:] == pytest.approx([0.1, 0.1])  # and never rises again
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_a_constant_learning_rate() -> None:
    config = OptimizerConfig(learning_rate=0.5, warmup_steps=2)
    assert [config.learning_rate_at(step, 10) for step in (0, 1, 2, 9)] == [0.25, 0.5, 0.5, 0.5]


def test_weight_decay_is_for_matrices_only() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.Linear(4, 4))
    model[2].requires_grad_(False)
    optimizer = OptimizerConfig(learning_rate=0.1, weight_decay=0.2, betas=(0.5, 0.9)).build(
        model.parameters()
    )
    groups = [(group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
    assert groups == [(0.2, 1), (0.0, 3)]
    assert all(group["betas"] == (0.5, 0.9) for group in optimizer.param_groups)


def test_a_fused_step_is_the_plain_one() -> None:
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        config = OptimizerConfig(learning_rate=0.1, weight_decay=0.01, fused=fused)
        optimizer = config.build(layer.parameters())
        assert optimizer.param_groups[0]["fused"] is fused
        for _ in range(3):
            layer(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
        results.append(layer.weight.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("fused", [True, False])
def test_an_optimizer_keeps_its_settings_when_it_goes_on_from_another(fused: bool) -> None:
    def built(**settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        optimizer = OptimizerConfig(learning_rate=0.1, **settings).build(layer.parameters())
        layer(torch.ones(1, 3)).sum().backward()
        return layer, optimizer

    _, saved = built(weight_decay=0.0, fused=not fused)
    saved.step()
    layer, optimizer = built(weight_decay=0.5, betas=(0.1, 0.2), fused=fused)
    before, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({**saved.state_dict(), "param_groups": []})
    optimizer.load_state_dict(saved.state_dict())
    groups = [(g["weight_decay"], g["betas"], g["fused"]) for g in optimizer.param_groups]
    assert groups == [(0.5, (0.1, 0.2), fused), (0.0, (0.1, 0.2), fused)]
    optimizer.step()  # the second: its gradients are 1, and so were those of the first
    # moments 0.9·0.1 → 0.1·0.1 + 0.9 and 0.05 → 0.2·0.05 + 0.8, corrected by 1 - 0.1² and 1 - 0.2²
    moved = 0.1 * (0.91 / 0.99) / (0.81 / 0.96) ** 0.5
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.1 * 0.5) - moved)
    torch.testing.assert_close(layer.bias.detach(), bias - moved)


def test_mistakes_in_an_optimizer() -> None:
    with pytest.raises(UserError, match="learning_rate must be positive, not 0"):
        OptimizerConfig(learning_rate=0)
    with pytest.raises(UserError, match="'constant' or 'cosine', not 'linear'"):
        OptimizerConfig(learning_rate=1, schedule="linear")


def adversary(**changes: Any) -> Adversary:
    settings: dict[str, Any] = {
        "optimizer": OptimizerConfig(learning_rate=1e-3),
        "start": 10,
        "warmup": 5,
        "ramp": 4,
        "weight": 0.8,
        "adaptive": True,
        "max_steps": 100,
    }
    network = PatchDiscriminator(base_channels=4, num_layers=1, norm="batch")
    return Adversary(network, **{**settings, **changes})


def test_the_discriminator_starts_and_the_generator_listens_later() -> None:
    schedule = adversary()
    assert [step for step in range(20) if schedule.trains_at(step)] == list(range(10, 20))
    factors = [schedule.generator_factor(step) for step in range(12, 21)]
    assert factors == pytest.approx([0, 0, 0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_a_start_as_a_fraction_of_the_training() -> None:
    assert adversary(start=0.25).start == 25
    assert adversary(start=1.0).start == 100
    assert adversary(start=1).start == 1
    with pytest.raises(UserError, match=r"adversary\.start .* not 1\.5"):
        adversary(start=1.5)


def test_without_ramp_the_weight_is_full_at_once() -> None:
    schedule = adversary(start=0, warmup=0, ramp=0)
    assert schedule.generator_factor(0) == 0.8


def test_the_generators_pass_leaves_the_discriminator_alone() -> None:
    torch.manual_seed(0)
    module = adversary().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    reconstructions = torch.randn(2, 3, 16, 16, requires_grad=True)
    loss = module.generator_loss(reconstructions)
    torch.autograd.grad(loss, reconstructions)
    assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert loss.item() == pytest.approx(-module.discriminator(reconstructions).mean().item())


def test_the_discriminators_loss_is_the_hinge_of_both() -> None:
    torch.manual_seed(0)
    module = adversary().train()
    images, reconstructions = torch.randn(2, 2, 3, 16, 16)
    losses = module.discriminator_loss(images, reconstructions)
    real, fake = module.discriminator(images), module.discriminator(reconstructions)
    expected = 0.5 * ((1 - real).clamp(min=0).mean() + (1 + fake).clamp(min=0).mean())
    assert losses["discriminator_loss"].item() == pytest.approx(expected.item())
    assert losses["scores_real"].item() == pytest.approx(real.mean().item(), abs=1e-6)
    assert losses["scores_fake"].item() == pytest.approx(fake.mean().item(), abs=1e-6)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("45m", 2700), ("1h30m", 5400), ("2h", 7200)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1.5h", "30m1h", "an hour"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UserError, match=r"90s, 45m or 1h30m"):
        parse_duration(text)


def test_mistakes_in_the_trainers_settings() -> None:
    settings: dict[str, Any] = {
        "max_steps": 1,
        "val_every": 1,
        "monitor": "val/loss",
        "export": "best",
    }
    for name, value in (
        ("export", "first"),
        ("precision", "16"),
        ("max_steps", 0),
        ("accumulate", 0),
        ("max_time", "long"),
    ):
        with pytest.raises(UserError, match=rf"trainer\.{name} .*{value}"):
            TrainerConfig(**{**settings, name: value})


def test_overfitting_is_noticed_once_and_only_while_training_improves() -> None:
    watch = OverfittingWatch(patience=2)
    losses = [(2.0, 3.0), (1.9, 2.5), (1.5, 2.6), (1.2, 2.8), (1.0, 2.9)]
    said = [watch.update(step, *pair) for step, pair in enumerate(losses)]
    assert [text is not None for text in said] == [False, False, False, True, False]
    text = str(said[3])
    for part in ("since step 1", "2.5000 to 2.8000", "1.9000 to 1.2000", "best.ckpt keeps step 1"):
        assert part in text
    resumed = OverfittingWatch(patience=1)  # of a run whose patience of 9 was not yet over
    resumed.load_state_dict({**asdict(watch), "patience": 9, "spoken": False})
    assert resumed.best_step == 1
    assert resumed.update(5, 0.9, 3.0) is not None
    again = OverfittingWatch(patience=2)  # it had spoken already
    again.load_state_dict(asdict(watch))
    assert again.update(5, 0.9, 3.0) is None
    late = OverfittingWatch(patience=2)  # the training loss is better only in the fourth
    for step, pair in enumerate([(2.0, 2.0), (1.9, 2.5), (2.1, 2.6)]):
        assert late.update(step, *pair) is None
    assert late.update(3, 1.5, 2.8) is not None
    assert late.update(4, 1.4, 2.9) is None
    noisy = OverfittingWatch(patience=1)  # both get worse: that is divergence, not overfitting
    assert noisy.update(0, 1.0, 1.0) is None
    assert noisy.update(1, 1.5, 2.0) is None
