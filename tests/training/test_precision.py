"""`trainer.precision=64-true`: every computation follows the dtype of the weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    STAGES,
    TinyData,
    image_data,
    run_training,
    tiny_adversary,
    tiny_vqgan,
    token_data,
    transformer_training,
    vqgan_training,
)
from torch import Tensor, nn

from taming.conditioning import ClassLabel
from taming.discriminators.actnorm import ActNorm
from taming.generation import ImageGenerator
from taming.generation.choice import guide
from taming.losses import FeatureLoss, LeCAM, LPIPSLoss
from taming.quantizers import build_quantizer
from taming.tokenizer import VQGAN
from taming.transformer.loss import token_losses

DOUBLE = torch.float64
VECTOR = {"kind": "vector", "codebook_size": 6, "codebook_dim": 4}
QUANTIZERS: dict[str, dict[str, Any]] = {
    "gradient": VECTOR,
    "ema": {**VECTOR, "ema_decay": 0.9, "revive_after": 1},
    "cosine": {**VECTOR, "ema_decay": 0.9, "cosine": True},
    "kmeans": {**VECTOR, "init": "kmeans", "gradient": "rotation", "entropy_weight": 0.1},
    "gumbel": {**VECTOR, "kind": "gumbel"},
    "soft gumbel": {**VECTOR, "kind": "gumbel", "hard": False},
}


def uses_float64(values: Tensor) -> bool:
    """Whether the values have more digits than float32."""
    return values.dtype == DOUBLE and not torch.equal(values, values.float().double())


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_quantizer_follows_its_weights(name: str) -> None:
    quantizer = build_quantizer(QUANTIZERS[name]).double().train()
    for weight in quantizer.parameters():
        weight.data += 0.01 * random(*weight.shape)
    for _ in range(3):
        output = quantizer(random(2, 4, 3, 5).requires_grad_())
        ((output.quantized * random(2, 4, 3, 5)).sum() + output.loss).backward()
    assert uses_float64(output.quantized) and all(map(uses_float64, output.losses.values()))
    assert all(uses_float64(p.grad) for p in quantizer.parameters() if p.grad is not None)
    if "ema_decay" in QUANTIZERS[name]:  # others learn by gradient
        state = quantizer.state_dict()
        assert all(uses_float64(state[key]) for key in ("codebook", "average.sums"))
    output = quantizer.eval()(random(2, 4, 3, 5))
    assert torch.equal(quantizer.lookup(output.indices), output.quantized)


def test_finite_scalars_take_float64() -> None:
    quantizer = build_quantizer({"kind": "finite_scalar", "levels": [5, 4]}).double()
    output = quantizer(random(2, 2, 3, 5).requires_grad_())
    assert output.quantized.dtype == DOUBLE
    assert torch.equal(quantizer.lookup(output.indices).double(), output.quantized)


def modules(squeezenet: Path) -> Iterator[tuple[str, nn.Module, list[Tensor]]]:
    images = random(2, 3, 32, 32), random(2, 3, 32, 32)
    yield "LeCAM", LeCAM(), [random(2, 1, 4, 4), random(2, 1, 4, 4)]
    yield "ActNorm", ActNorm(3), [images[0]]
    yield "features", FeatureLoss(backbone="squeezenet1_1", weights=squeezenet), [*images]
    yield "LPIPS", LPIPSLoss(backbone="alex", pretrained=False), [*images]


def test_losses_and_normalisation_follow_their_weights(squeezenet: Path) -> None:
    for name, module, inputs in modules(squeezenet):
        module.double().train()
        for _ in range(2):
            assert uses_float64(module(*inputs)), name
        learned = [*module.parameters(), *module.buffers()]
        states = [state for state in learned if state.dtype.is_floating_point]
        assert all(state.dtype == DOUBLE for state in states), name
        if name in ("LeCAM", "ActNorm"):  # they measure what they hold
            assert all(map(uses_float64, states)), name


def test_adversarial_losses_follow_the_discriminator() -> None:
    adversary = tiny_adversary("actnorm", lecam_weight=0.1).double()
    images, reconstructions = random(2, 3, 16, 16), random(2, 3, 16, 16)
    losses = adversary.discriminator_loss(images, reconstructions)
    names = ("discriminator_loss", "scores_real", "scores_fake", "lecam_loss")
    assert all(uses_float64(losses[name]) for name in names)
    assert uses_float64(adversary.generator_loss(reconstructions))


def test_tokens_follow_the_weights() -> None:
    features, tokens = random(2, 5, 4), torch.randint(6, (2, 5))
    assert uses_float64(token_losses(nn.Linear(4, 6).double(), features, tokens, 6))
    conditional, unconditional = random(2, 6), random(2, 6)
    expected = unconditional + 1.5 * (conditional - unconditional)
    guided = guide(conditional, unconditional, 1.5)
    torch.testing.assert_close(guided, expected, rtol=1e-14, atol=1e-14)


# --- runs ---------------------------------------------------------------------------------------


def stage(kind: str) -> tuple[Any, TinyData]:
    """A training with everything that keeps statistics of its own."""
    torch.manual_seed(0)
    if kind == "vqgan":
        adversary = tiny_adversary("actnorm", lecam_weight=0.1, augmentation=["color", "cutout"])
        vqgan = tiny_vqgan(revive_after=3, ema_decay=0.9, entropy_weight=0.1)
        return vqgan_training(adversary, vqgan), image_data()
    return transformer_training(ClassLabel(3, dropout=0.3), "rotary_2d", pkeep=0.9), token_data()


@pytest.mark.parametrize("kind", STAGES)
def test_a_run_in_float64(tmp_path: Path, kind: str) -> None:
    """It trains, resumes bit for bit and exports a model that loads as float32."""
    single = run_training(tmp_path / "single", *stage(kind))
    double = run_training(tmp_path / "double", *stage(kind), precision="64-true")
    tensors = double.module.state_dict().values()
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in floats} == {DOUBLE}
    name = "val/pixel_loss" if kind == "vqgan" else "val/loss"
    expected = single.result.metrics[name]  # of other random numbers, which depend on the dtype
    assert double.result.metrics[name] == pytest.approx(expected, rel=0.01)

    part = run_training(tmp_path / "part", *stage(kind), precision="64-true", interrupt_at=5)
    assert part.result.interrupted and part.result.step == 5
    resumed = run_training(tmp_path / "part", *stage(kind), precision="64-true", resume=True)
    for key, value in double.module.state_dict().items():
        assert torch.equal(resumed.module.state_dict()[key], value), key

    if kind == "vqgan":
        vqgan = VQGAN.from_pretrained(tmp_path / "double" / "model")
        images = image_data().val_dataset.tensors["images"]
        assert vqgan.decode(vqgan.encode(images)).dtype == torch.float32
    else:
        generator = ImageGenerator.from_pretrained(tmp_path / "double" / "model")
        samples = generator.sample(2, condition=[0, 2], guidance_scale=1.5, seed=0)
        assert samples.dtype == torch.float32 and samples.isfinite().all()
