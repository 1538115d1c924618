"""Stage 2 in fixed, random and annealed orders."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import run_training, token_data, transformer_training, without_trainer

from taming.generation import ImageGenerator
from taming.training import Annealing, model_order
from taming.training.orders import validation_orders
from taming.transformer.orders import order_cells, to_tokens


def batch_of(num_images: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    indices = torch.randint(8, (num_images, 8, 8), generator=generator)
    return {"indices": indices, "labels": torch.arange(num_images) % 3}


def inputs_at(module: Any, step: int, batch: dict[str, torch.Tensor]) -> Any:
    """The tokens, cells and targets of the loss after `step` of 8 steps."""
    calls: list[Any] = []
    module = without_trainer(module, step)
    losses = module.transformer.token_losses
    module._token_losses = lambda _, tokens, context, *, cells, targets: (
        calls.append((tokens, cells, targets)) or losses(_, tokens, context, cells=cells)
    )
    module.training_step(batch, 0)
    return calls[0]


def test_the_share_of_random_orders() -> None:
    shares = [Annealing().share(step / 8) for step in range(9)]
    assert shares == [1, 1, 1, 1, 1, 0.5, 0, 0, 0]
    assert Annealing(0.25, 0.25, 0.4).share(0.24) == 1 and Annealing(0, 0, 0.4).share(0) == 0.4
    assert Annealing(0, 1, 0.5).share(0.5) == 0.75
    assert [model_order(order) for order in ("annealed", "random", "z_curve")] == [
        "any", "any", "z_curve",
    ]  # fmt: skip


def test_each_image_trains_in_its_own_random_order() -> None:
    batch = batch_of(50)
    tokens, cells, targets = inputs_at(transformer_training(order="random"), 7, batch)
    assert torch.equal(cells.sort(1).values, torch.arange(64).expand(50, -1))
    assert len({tuple(row) for row in cells.tolist()}) == 50
    assert torch.equal(tokens, batch["indices"].flatten(1).gather(1, cells))
    assert torch.equal(targets, tokens)


@pytest.mark.parametrize(("final_share", "expected"), [(0.0, 0.0), (0.25, 0.25)])
def test_annealed_training_ends_in_raster_order(final_share: float, expected: float) -> None:
    annealing = Annealing(final_share=final_share)

    def random_share(step: int) -> float:
        module = transformer_training(order="annealed", annealing=annealing)
        _, cells, _ = inputs_at(module, step, batch_of(400))
        return (cells != torch.arange(64)).any(1).float().mean().item()

    assert random_share(4) == 1
    assert random_share(5) == pytest.approx(0.5 + expected / 2, abs=0.1)
    assert random_share(7) == pytest.approx(expected, abs=0.08)


def test_a_fixed_order_trains_and_samples_in_its_order(tmp_path: Path) -> None:
    batch = batch_of(4)
    tokens, cells, _ = inputs_at(transformer_training(order="spiral_in"), 0, batch)
    expected = to_tokens(batch["indices"], order_cells("spiral_in", (8, 8)))
    assert cells is None and torch.equal(tokens, expected)
    run_training(tmp_path, transformer_training(order="spiral_in"), token_data(), max_steps=1)
    model = ImageGenerator.from_pretrained(tmp_path / "model")
    assert model.transformer.config.order == "spiral_in"


@pytest.mark.parametrize("order", ["random", "annealed"])
def test_validation_reports_raster_and_random_orders(tmp_path: Path, order: Any) -> None:
    data = token_data()
    module = transformer_training(order=order, annealing=Annealing(final_share=0.25))
    run = run_training(tmp_path, module, data, max_steps=2, val_check_interval=1, ema_decay=None)
    generator = ImageGenerator.from_pretrained(tmp_path / "model")
    indices, labels = (data.val_dataset.tensors[name] for name in ("indices", "labels"))
    tokens, prefix = indices.flatten(1), generator.prompt(labels, len(labels)).prefix
    cells = validation_orders(tokens)
    assert torch.equal(cells.sort(1).values, torch.arange(64).expand(len(tokens), -1))
    assert len({tuple(row) for row in cells.tolist()}) > 3
    with torch.no_grad():
        losses = generator.transformer.token_losses
        in_raster = losses(prefix, tokens).mean().item()
        at_random = losses(prefix, tokens.gather(1, cells), cells=cells).mean().item()
    assert abs(in_raster - at_random) > 1e-5
    metrics = run.result.metrics
    assert metrics["val/bits_per_token"] == pytest.approx(in_raster / math.log(2), rel=1e-5)
    assert metrics["val/random_bits_per_token"] == pytest.approx(at_random / math.log(2), rel=1e-5)
    mixed = at_random if order == "random" else 0.75 * in_raster + 0.25 * at_random
    assert metrics["val/loss"] == pytest.approx(mixed, rel=1e-5)


def test_a_resumed_run_draws_the_orders_of_the_uninterrupted_run(tmp_path: Path) -> None:
    def train(place: str, **settings: Any) -> None:
        torch.manual_seed(0)
        module = transformer_training(order="annealed")
        run_training(tmp_path / place, module, token_data(), **settings)

    train("whole")
    train("parts", interrupt_at=5)
    torch.rand(7)  # whatever was drawn before
    train("parts", resume=True)
    whole, parts = (
        torch.load(tmp_path / place / "checkpoints" / "last.ckpt", weights_only=False)
        for place in ("whole", "parts")
    )
    assert whole["global_step"] == parts["global_step"] == 8
    for name, weight in whole["state_dict"].items():
        assert torch.equal(weight, parts["state_dict"][name]), name


def test_the_gradient_reaches_every_weight() -> None:
    module = without_trainer(transformer_training(order="random"))
    module.training_step(batch_of(4), 0)["loss"].backward()
    gradients = [parameter.grad for parameter in module.transformer.parameters()]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
