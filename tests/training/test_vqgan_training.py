from functools import partial
from typing import Any

import pytest
import torch
from tiny_training import (
    Gradients,
    backward,
    tiny_adversary,
    tiny_vqgan,
    vqgan_training,
    without_trainer,
)
from torch._dynamo.testing import CompileCounter
from torch.nn.utils import get_total_norm
from torch.utils._python_dispatch import TorchDispatchMode

from taming.losses import hinge_generator_loss
from taming.training import VQGANTraining

Tensors = dict[str, torch.Tensor]
aten = torch.ops.aten


def batch(size: int = 4, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {"images": torch.rand(size, 3, 16, 16, generator=generator) * 2 - 1}


def gradients(module: torch.nn.Module) -> Tensors:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def plain_gradients(module: VQGANTraining, images: torch.Tensor) -> Tensors:
    """The gradients of the loss as the paper writes it, by one ordinary backward pass."""
    vqgan, adversary = module.vqgan, module.adversary
    output = vqgan(images)
    reconstructions = output.reconstructions
    difference = reconstructions - images
    loss = 2.0 * difference.abs().mean() + 0.5 * difference.diff(dim=3).square().mean()
    reconstruction_loss = loss
    loss = loss + sum(output.quantizer.losses.values())
    factor = adversary.generator_factor(module.global_step) if adversary is not None else 0.0
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
    discriminator = tiny_adversary(**adversary) if adversary is not None else None
    weights = {"reconstruction_weight": 2.0, "perceptual_weight": 0.5}
    module = without_trainer(vqgan_training(discriminator, **weights), step)
    module.vqgan(batch()["images"])  # its codebook is initialised by the first batch
    expected = plain_gradients(module, batch()["images"])
    losses = backward(module, batch())
    actual = gradients(module.vqgan)
    assert actual.keys() == expected.keys()
    # of a bias before a normalisation all terms cancel: what is left is rounding of their size
    terms = max(gradient.abs().max().item() for gradient in expected.values())
    rounding = 8 * torch.finfo(torch.float32).eps * terms
    for name, gradient in expected.items():
        allowed = rounding + 1e-5 * gradient.abs().max().item()
        torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=allowed)
    listens = adversary is not None and step >= 3
    assert ("generator_loss" in losses) is listens
    assert ("adaptive_weight" in losses) is (listens and adversary["adaptive"])


def test_the_discriminator_learns_its_own_loss_and_nothing_else() -> None:
    module = without_trainer(vqgan_training(tiny_adversary(start=0, warmup=0)), 5)
    adversary = module.adversary
    discriminator_loss = adversary.discriminator_loss
    before = {n: b.clone() for n, b in adversary.named_buffers()}

    def watched(*args: torch.Tensor) -> Tensors:
        """The generator's pass, just done, has changed no statistics."""
        assert all(torch.equal(before[name], b) for name, b in adversary.named_buffers())
        return discriminator_loss(*args)

    adversary.discriminator_loss = watched
    assert "generator_loss" in backward(module, batch())
    actual = gradients(adversary.discriminator)
    adversary.zero_grad()
    with torch.no_grad():
        reconstructions = module.vqgan(batch()["images"]).reconstructions
    discriminator_loss(batch()["images"], reconstructions)["discriminator_loss"].backward()
    for name, gradient in gradients(adversary.discriminator).items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=1e-7)


def test_the_discriminators_loss_does_not_reach_the_generator() -> None:
    actual = []
    for adversary in (tiny_adversary(start=0, warmup=100), None):
        torch.manual_seed(1)
        module = without_trainer(vqgan_training())
        module.adversary = adversary
        backward(module, batch())
        assert adversary is None or gradients(adversary)
        actual.append(gradients(module.vqgan))
    assert all(torch.equal(actual[0][name], actual[1][name]) for name in actual[1])


def test_the_discriminator_learns_nothing_before_its_start() -> None:
    module = without_trainer(vqgan_training(tiny_adversary(start=2)), 1)
    assert "discriminator_loss" not in backward(module, batch())
    assert gradients(module.adversary) == {}
    assert "discriminator_loss" in backward(without_trainer(module, 2), batch())


def test_two_half_batches_have_the_gradient_of_the_whole() -> None:
    actual = []
    for parts in ([slice(0, 4)], [slice(0, 2), slice(2, 4)]):
        torch.manual_seed(0)
        module = without_trainer(vqgan_training(tiny_adversary(adaptive=False)), 5)
        module.vqgan.quantizer.started.fill_(True)  # the codes stay where they are
        module.adversary.discriminator.eval()  # no batch statistics
        for part in parts:
            backward(module, {"images": batch()["images"][part]}, 1 / len(parts))
        actual.append(gradients(module))
    assert any(name.startswith("adversary") for name in actual[0])
    largest = max(float(gradient.abs().max()) for gradient in actual[0].values())
    for name, gradient in actual[0].items():
        # a bias before a normalisation has a gradient of 0, but for rounding
        tolerance = 1e-4 * float(gradient.abs().max()) + 1e-6 * largest
        torch.testing.assert_close(actual[1][name], gradient, rtol=0, atol=tolerance)


@pytest.mark.parametrize("limit", [0.5, 100.0, None])
def test_each_network_is_clipped_separately(limit: float | None) -> None:
    module = without_trainer(vqgan_training(tiny_adversary()), 4)
    networks = {"": module.vqgan, "discriminator_": module.adversary.discriminator}
    for norm, network in zip((5.0, 7.0), networks.values(), strict=True):
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.view(-1)[0] = norm
    module.on_before_optimizer_step(None)
    module.configure_gradient_clipping(None, limit, None if limit is None else "norm")
    for norm, (prefix, network) in zip((5.0, 7.0), networks.items(), strict=True):
        clipped = get_total_norm([p.grad for p in network.parameters()]).item()
        assert clipped == pytest.approx(min(norm, limit or norm), rel=1e-4)
        assert module._sums[f"{prefix}gradient_norm"] == norm  # reported as before clipping
    module.adversary.zero_grad()  # as before its start
    module._sums = {}
    module.on_before_optimizer_step(None)
    module.configure_gradient_clipping(None, limit, None if limit is None else "norm")
    assert module._sums.keys() == {"gradient_norm"}


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch.compile itself
@pytest.mark.parametrize(
    "switches",
    [["checkpointing"], ["channels_last"], ["compile", "checkpointing", "channels_last"]],
    ids="+".join,
)
def test_switches_of_speed_and_memory_change_no_gradient(
    monkeypatch: pytest.MonkeyPatch, switches: list[str]
) -> None:
    # all of the compiler but its code generator, which takes minutes
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))

    def run(switches: list[str]) -> tuple[Tensors, Tensors, set[str]]:
        torch.manual_seed(0)
        settings = dict.fromkeys(switches, True)
        module = without_trainer(vqgan_training(tiny_adversary(), **settings), 4)
        names = set(module.state_dict())  # checkpoints do not depend on the switches
        module.vqgan(batch()["images"])
        return backward(module, batch()), gradients(module), names

    (losses, expected, names), (other_losses, actual, other_names) = run([]), run(switches)
    assert other_names == names and actual.keys() == expected.keys()
    # sums in another order round by an error relative to a tensor's largest element; gradients that
    # are zero in theory, such as a bias's before a normalisation, are rounding error of the others
    floor = 1e-6 * max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        allowed = 1e-4 * float(gradient.abs().max()) + floor
        torch.testing.assert_close(actual[name], gradient, rtol=0, atol=allowed)
    for name, value in losses.items():
        torch.testing.assert_close(other_losses[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch.compile itself
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_each_network_is_compiled_whole_and_once(
    monkeypatch: pytest.MonkeyPatch, norm: str
) -> None:
    counter = CompileCounter()  # stands for the compiler
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    module = without_trainer(vqgan_training(tiny_adversary(norm), compile=True))
    module.setup("fit")
    frames = []
    for step in (0, 1, 2, 3, 4, 5):  # the discriminator starts at 2, the generator listens from 3
        backward(without_trainer(module, step), batch())
        frames.append(counter.frame_count)
    with torch.inference_mode():
        module.eval().validation_step(batch(3), 0)
    frames.append(counter.frame_count)
    # encoder, decoder and perceptual loss; the discriminator learning, and being listened to
    assert frames == [3, 3, 4, 5, 5, 5, 5]


def test_checkpointing_keeps_fewer_activations() -> None:
    def num_saved(checkpointing: bool) -> int:
        module = vqgan_training(checkpointing=checkpointing).train()
        sizes: list[int] = []

        def count(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            module.vqgan(batch()["images"])
        return sum(sizes)

    assert num_saved(True) < 0.7 * num_saved(False)


def test_the_adaptive_weight_is_computed_every_few_steps_and_bounded() -> None:
    module = without_trainer(vqgan_training(tiny_adversary(adaptive_every=2)))
    weights = []
    for step in range(3, 7):  # the generator listens from step 3 on
        losses = backward(without_trainer(module, step), batch(seed=step))
        weights.append(losses["adaptive_weight"].item())
        module.vqgan.last_layer.data *= 1.1
    assert weights[0] == weights[1] != weights[2] == weights[3]
    assert float(module.state_dict()["adaptive_weight"]) == weights[-1]
    module.adversary.adaptive_max = 1e-3
    bounded = backward(without_trainer(module, 7), batch())["adaptive_weight"]
    assert bounded.item() == pytest.approx(1e-3)


def test_bf16_is_close_to_float32() -> None:
    def run(enabled: bool) -> tuple[Tensors, Tensors]:
        torch.manual_seed(0)
        module = without_trainer(vqgan_training(tiny_adversary()), 4)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            losses = backward(module, batch(16))
        return losses, gradients(module)

    (losses, expected), (bf16_losses, actual) = run(False), run(True)
    for name, value in losses.items():
        assert bf16_losses[name].dtype == torch.float32, name
        torch.testing.assert_close(bf16_losses[name], value, rtol=0.1, atol=0.02, msg=name)
    assert actual.keys() == expected.keys()
    # some latents are rounded to another code, so gradients agree less the deeper they come from
    for name, least in (("decoder.conv_out.weight", 0.99), ("encoder.conv_in.weight", 0.8)):
        pair = [gradient[f"vqgan.{name}"].flatten() for gradient in (actual, expected)]
        assert torch.cosine_similarity(*pair, dim=0) > least, name


class Convolutions(TorchDispatchMode):
    """Notes the type that each convolution computes in, forwards and backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.convolution.default, aten.convolution_backward.default):
            self.dtypes += [x.dtype for x in args[:3] if x is not None]
        return func(*args, **(kwargs or {}))


def test_under_autocast_every_convolution_of_a_step_is_in_bf16() -> None:
    """Those of the discriminator and of the adaptive weight too."""
    module = without_trainer(vqgan_training(tiny_adversary()), 4)
    with Convolutions() as watch, torch.autocast("cpu", torch.bfloat16):
        assert "adaptive_weight" in backward(module, batch())
    assert len(watch.dtypes) > 100 and set(watch.dtypes) == {torch.bfloat16}


class Half(Gradients):
    """Its products are in float16, and so are their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3).requires_grad_(False)

    def forward(self, reconstructions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return (self.conv(reconstructions) - self.conv(images)).float().square().mean()


def scaled_gradients(module: VQGANTraining, scale: float | None) -> Tensors:
    """The gradients with a gradient scaler, divided by its scale again."""
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    backward(without_trainer(module, 4, scaler), batch())
    return {name: gradient / (scale or 1.0) for name, gradient in gradients(module).items()}


def test_a_scaler_changes_no_gradient() -> None:
    results = []
    for scale in (None, 2.0**16):
        torch.manual_seed(0)
        module = vqgan_training(tiny_adversary())
        results.append((scaled_gradients(module, scale), module.adaptive_weight))
    (plain, weight), (scaled, other_weight) = results
    torch.testing.assert_close(other_weight, weight)
    for name, gradient in plain.items():
        torch.testing.assert_close(scaled[name], gradient, rtol=1e-4, atol=1e-7)


def test_small_gradients_survive_float16_with_a_scaler() -> None:
    actual = []
    for weight, scale in ((1.0, None), (1e-6, None), (1e-6, 2.0**20)):
        torch.manual_seed(0)
        module = vqgan_training(reconstruction_weight=0.0, perceptual_weight=weight)
        module.perceptual = Half()
        last = scaled_gradients(module, scale)["vqgan.decoder.conv_out.weight"]
        actual.append(last.flatten() / weight)
    right, without, scaled = actual
    assert (scaled - right).norm() < 0.01 * right.norm()
    assert (without - right).norm() > 0.3 * right.norm()


def test_a_quantizer_without_losses_trains() -> None:
    module = without_trainer(vqgan_training(vqgan=tiny_vqgan("finite_scalar", levels=[5, 4, 3])))
    backward(module, batch())
    actual = gradients(module.vqgan.encoder)
    assert all(gradient.isfinite().all() for gradient in actual.values())
    assert any(gradient.abs().sum() > 0 for gradient in actual.values())


def test_the_quantizer_gets_the_step() -> None:
    schedule = {"temperature_end": 0.5, "temperature_steps": 4, "temperature_schedule": "linear"}
    module = vqgan_training(vqgan=tiny_vqgan("gumbel", **schedule))
    for step, temperature in ((0, 1.0), (2, 0.75), (9, 0.5)):  # of a resumed run just as well
        assert backward(without_trainer(module, step), batch())["kl_loss"] > 0
        assert module.vqgan.quantizer.temperature.item() == pytest.approx(temperature)


def test_the_optimizer_leaves_out_an_averaged_codebook() -> None:
    module = without_trainer(vqgan_training(vqgan=tiny_vqgan(ema_decay=0.9, init="kmeans")))
    backward(module, batch())
    optimizer = module.configure_optimizers()["optimizer"]
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    names = {name for name, p in module.vqgan.named_parameters() if id(p) not in optimized}
    assert names == {"quantizer.codebook"}
