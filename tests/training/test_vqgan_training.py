from typing import Any

import pytest
import torch
from tiny_training import Gradients, tiny_adversary, tiny_vqgan, vqgan_training
from torch.nn.utils import parameters_to_vector

from taming.errors import UserError
from taming.losses import hinge_generator_loss
from taming.training import OptimizerConfig, VQGANTraining
from taming.training.adversary import Adversary
from taming.vqgan import VQGAN


def batch(size: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"images": torch.rand(size, 3, 16, 16, generator=generator) * 2 - 1}


def alone(module: VQGANTraining) -> VQGANTraining:
    """The module without a trainer: `manual_backward` goes straight to `backward`."""
    module.manual_backward = lambda loss: module.backward(loss)  # type: ignore[method-assign]
    return module.train()


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def plain_gradients(module: VQGANTraining, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of the loss as the paper writes it, by one ordinary backward pass."""
    vqgan, adversary = module.vqgan, module.adversary
    output = vqgan(images)
    reconstructions = output.reconstructions
    difference = reconstructions - images
    loss = 2.0 * difference.abs().mean() + 0.5 * difference.diff(dim=3).square().mean()
    reconstruction_loss = loss
    loss = loss + sum(output.quantizer.losses.values())
    factor = adversary.generator_factor(module.step) if adversary is not None else 0.0
    if adversary is not None and factor > 0:
        adversarial = hinge_generator_loss(adversary.discriminator(reconstructions))
        if adversary.adaptive:
            last = vqgan.decoder.conv_out.weight
            norms = [
                torch.autograd.grad(term, last, retain_graph=True)[0].norm()
                for term in (reconstruction_loss, adversarial)
            ]
            factor = factor * (norms[0] / (norms[1] + 1e-4)).clamp(0, 1e4).item()
        loss = loss + factor * adversarial
    names, parameters = zip(*vqgan.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize(
    ("adversary", "step"),
    [(None, 0), ({"adaptive": True}, 0), ({"adaptive": True}, 4), ({"adaptive": False}, 3)],
)
def test_the_gradients_are_those_of_the_papers_loss(adversary: Any, step: int) -> None:
    torch.manual_seed(0)
    module = alone(
        vqgan_training(
            tiny_adversary(**adversary) if adversary is not None else None,
            reconstruction_weight=2.0,
            perceptual_weight=0.5,
        )
    )
    module.vqgan(batch()["images"])  # its codebook is initialised by the first batch
    module.step = step
    expected = plain_gradients(module, batch()["images"])
    losses = module.backward_losses(batch())
    found = gradients(module.vqgan)
    assert found.keys() == expected.keys()
    # of a bias before a normalisation all terms cancel: what is left is rounding of their size
    terms = max(gradient.abs().max().item() for gradient in expected.values())
    rounding = 8 * torch.finfo(torch.float32).eps * terms
    for name, gradient in expected.items():
        largest = gradient.abs().max().item()
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=rounding + 1e-5 * largest)
    listens = adversary is not None and step >= 3
    assert ("generator_loss" in losses) is listens
    assert ("adaptive_weight" in losses) is (listens and adversary["adaptive"])


def test_the_generator_changes_nothing_of_the_discriminator() -> None:
    torch.manual_seed(0)
    module = alone(vqgan_training(tiny_adversary(start=0, warmup=0)))
    adversary = module.adversary
    assert isinstance(adversary, Adversary)
    statistics: list[dict[str, torch.Tensor]] = []
    discriminator_loss = adversary.discriminator_loss

    def watched(*args: torch.Tensor) -> dict[str, torch.Tensor]:
        statistics.append({n: b.clone() for n, b in adversary.named_buffers()})
        assert all(p.grad is None for p in adversary.parameters())
        return discriminator_loss(*args)

    adversary.discriminator_loss = watched  # type: ignore[method-assign]
    before = {n: b.clone() for n, b in adversary.named_buffers()}
    module.step = 5
    assert "generator_loss" in module.backward_losses(batch())
    assert all(torch.equal(before[name], b) for name, b in statistics[0].items())
    # what the discriminator then learns is its own loss and no more
    found = gradients(adversary.discriminator)
    adversary.zero_grad()
    with torch.no_grad():
        reconstructions = module.vqgan(batch()["images"]).reconstructions
    discriminator_loss(batch()["images"], reconstructions)["discriminator_loss"].backward()
    for name, gradient in gradients(adversary.discriminator).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


def test_the_discriminators_loss_does_not_reach_the_generator() -> None:
    torch.manual_seed(0)
    without = alone(vqgan_training())
    torch.manual_seed(0)
    with_adversary = alone(vqgan_training())
    with_adversary.adversary = tiny_adversary(start=0, warmup=100)
    found = []
    for module in (with_adversary, without):
        torch.manual_seed(1)
        module.backward_losses(batch())
        found.append(gradients(module.vqgan))
    assert gradients(with_adversary.adversary)  # type: ignore[arg-type]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[1])


def test_the_discriminator_learns_nothing_before_its_start() -> None:
    module = alone(vqgan_training(tiny_adversary(start=2)))
    losses = module.backward_losses(batch())
    assert "discriminator_loss" not in losses
    assert gradients(module.adversary) == {}  # type: ignore[arg-type]
    module.step = 2
    assert "discriminator_loss" in module.backward_losses(batch())


def test_two_half_batches_have_the_gradient_of_the_whole() -> None:
    found = []
    for accumulate, parts in ((1, [slice(0, 4)]), (2, [slice(0, 2), slice(2, 4)])):
        torch.manual_seed(0)
        module = alone(vqgan_training(tiny_adversary(adaptive=False), accumulate=accumulate))
        module.vqgan.quantizer.started.fill_(True)  # the codes stay where they are
        module.adversary.discriminator.eval()  # type: ignore[union-attr]  # no batch statistics
        module.step = 5
        for part in parts:
            module.backward_losses({"images": batch()["images"][part]})
        found.append({**gradients(module.vqgan), **gradients(module.adversary)})  # type: ignore[arg-type]
    assert len(found[0]) > len(list(module.vqgan.parameters()))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-7)


class Watched(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.norm = parameters_to_vector([p.grad for p in parameters]).norm().item()
        self.learning_rate = self.param_groups[0]["lr"]


@pytest.mark.parametrize(("limit", "expected"), [(0.5, 0.5), (100.0, 5.0), (None, 5.0)])
def test_gradients_are_clipped_to_their_norm(limit: float | None, expected: float) -> None:
    module = vqgan_training(gradient_clip=limit)
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    optimizer = Watched([weight], lr=1.0)
    config = OptimizerConfig(learning_rate=0.4, warmup_steps=4)
    module.step = 1
    module.step_optimizer(optimizer, config, [weight], "")
    assert optimizer.norm == pytest.approx(expected, rel=1e-4)
    assert optimizer.learning_rate == pytest.approx(0.2)  # the second of four steps of warm-up
    assert weight.grad is None
    assert module._sums["gradient_norm"].item() == pytest.approx(5.0)  # reported before clipping


def test_the_perceptual_network_is_in_no_checkpoint_and_no_optimizer() -> None:
    from taming.losses import LPIPSLoss

    module = VQGANTraining(
        VQGAN(**{**tiny_vqgan().config, "resolution": 32}),
        LPIPSLoss(backbone="alex", pretrained=False),
        None,
        optimizer=OptimizerConfig(learning_rate=1e-3),
        max_steps=1,
    ).train()
    assert not any("lpips" in name or "perceptual" in name for name in module.state_dict())
    (optimizer,) = module.configure_optimizers()
    trained = sum(len(group["params"]) for group in optimizer.param_groups)
    assert trained == len(list(module.vqgan.parameters()))
    assert module.perceptual is not None
    assert not any(m.training for m in module.perceptual.lpips.network.modules())


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match=r"is 'l1', 'l2' or 'cross_entropy', not 'l3'"):
        vqgan_training(reconstruction="l3")
    with pytest.raises(UserError, match=r"trainer\.accumulate must be at least 1, not 0"):
        vqgan_training(accumulate=0)
    adversary = tiny_adversary()
    adversary.discriminator.num_layers = 3
    with pytest.raises(UserError, match="needs images of 24 pixels or more, and these are 16×16"):
        VQGANTraining(
            tiny_vqgan(),
            Gradients(),
            adversary,
            optimizer=OptimizerConfig(learning_rate=1e-3),
            max_steps=1,
        )


def settings_of_speed() -> list[Any]:
    slow = pytest.mark.compile, pytest.mark.slow
    return [
        {"checkpointing": True},
        {"channels_last": True},
        pytest.param({"compile": True}, marks=slow),
        pytest.param({"compile": True, "checkpointing": True, "channels_last": True}, marks=slow),
    ]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch.compile itself
@pytest.mark.parametrize("settings", settings_of_speed())
def test_switches_of_speed_and_memory_change_no_gradient(settings: dict[str, bool]) -> None:
    def run(**settings: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        module = alone(vqgan_training(tiny_adversary(), **settings))
        names = set(module.state_dict())
        module.vqgan(batch()["images"])
        module.step = 4
        losses = module.backward_losses(batch())
        assert set(module.state_dict()) == names  # a checkpoint does not depend on the switches
        return losses, gradients(module)

    losses, expected = run()
    other_losses, found = run(**settings)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)
    for name, value in losses.items():
        torch.testing.assert_close(other_losses[name], value, rtol=1e-4, atol=1e-6)


def test_checkpointing_keeps_fewer_activations() -> None:
    def num_saved(checkpointing: bool) -> int:
        torch.manual_seed(0)
        module = alone(vqgan_training(checkpointing=checkpointing))
        sizes: list[int] = []

        def count(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            module.vqgan(batch()["images"])
        return sum(sizes)

    assert num_saved(True) < 0.7 * num_saved(False)


def test_the_adaptive_weight_is_computed_every_few_steps() -> None:
    torch.manual_seed(0)
    module = alone(vqgan_training(tiny_adversary(adaptive_every=2)))
    weights = []
    for step in range(3, 7):  # the generator listens from step 3 on
        module.step = step
        weights.append(float(module.backward_losses(batch(seed=step))["adaptive_weight"]))
        module.vqgan.last_layer.data *= 1.1
    assert weights[0] == weights[1] != weights[2] == weights[3]
    assert float(module.state_dict()["adaptive_weight"]) == weights[-1]


def test_the_adaptive_weight_is_bounded() -> None:
    module = alone(vqgan_training(tiny_adversary(adaptive_max=1e-3)))
    module.step = 4
    assert float(module.backward_losses(batch())["adaptive_weight"]) == pytest.approx(1e-3)


def test_bf16_is_close_to_float32() -> None:
    def run(enabled: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        module = alone(vqgan_training(tiny_adversary()))
        module.step = 4
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            losses = module.backward_losses(batch(16))
        return losses, gradients(module)

    losses, expected = run(False)
    bf16_losses, found = run(True)
    for name, value in losses.items():
        assert bf16_losses[name].dtype == torch.float32, name
        torch.testing.assert_close(bf16_losses[name], value, rtol=0.1, atol=0.02, msg=name)
    assert found.keys() == expected.keys()
    # some latents are rounded to another code, so gradients agree less the deeper they come from
    for name, least in (("decoder.conv_out.weight", 0.99), ("encoder.conv_in.weight", 0.8)):
        pair = [gradient[f"vqgan.{name}"].flatten() for gradient in (found, expected)]
        assert torch.cosine_similarity(*pair, dim=0) > least, name


def test_metrics_fit_the_images() -> None:
    metric: Any = torch.nn.Module()
    metric.min_side = 17
    with pytest.raises(UserError, match="16×16 are too small for Module, which needs 17"):
        vqgan_training(metrics=[metric])
    with pytest.raises(UserError, match=r"small for the perceptual loss.* needs 17.*perceptual="):
        VQGANTraining(tiny_vqgan(), metric, None, optimizer=OptimizerConfig(1e-3), max_steps=8)
