"""Properties of every quantizer with every option."""

import copy
from typing import Any

import pytest
import torch
from tiny_models import changed, weights

from taming.quantizers import Quantizer, build_quantizer
from taming.runtime.errors import UserError

VECTOR = {"kind": "vector", "codebook_size": 24, "codebook_dim": 4}
GUMBEL = {"kind": "gumbel", "codebook_size": 24, "codebook_dim": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "vector": VECTOR,
    "cosine": {**VECTOR, "cosine": True, "revive_after": 3},
    "ema": {**VECTOR, "ema_decay": 0.9, "init": "data"},
    "ema cosine": {**VECTOR, "ema_decay": 0.9, "cosine": True, "revive_after": 2},
    "kmeans": {**VECTOR, "init": "kmeans", "revive_after": 2},
    "entropy": {**VECTOR, "entropy_weight": 0.1, "ema_decay": 0.9, "init": "kmeans"},
    "rotation": {**VECTOR, "gradient": "rotation", "init": "data"},
    "gumbel": {**GUMBEL, "temperature_steps": 10},
    "soft gumbel": {**GUMBEL, "hard": False},
    "finite_scalar": {"kind": "finite_scalar", "levels": [8, 5, 4, 3]},
}
EVERY = pytest.mark.parametrize("name", CONFIGS)


def build(name: str) -> Quantizer:
    torch.manual_seed(0)
    return build_quantizer(CONFIGS[name]).train()


def latents(seed: int = 1) -> torch.Tensor:
    return 2 * torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(seed))


def trained_quantizer(name: str, steps: int = 2) -> Quantizer:
    quantizer = build(name)
    for seed in range(steps):
        quantizer(latents(seed))
    return quantizer


@EVERY
def test_lookup_returns_the_codes_of_evaluation(name: str) -> None:
    quantizer = trained_quantizer(name).eval()
    output = quantizer(latents())
    assert output.quantized.shape == (2, 4, 3, 5)
    assert torch.equal(quantizer.lookup(output.indices), output.quantized)
    assert len(output.indices.unique()) > 3  # or the test would say little


@EVERY
def test_training_and_evaluation_return_the_same_kind_of_output(name: str) -> None:
    quantizer = build(name)
    outputs = [quantizer.train(mode)(latents()) for mode in (True, False)]
    for field in ("quantized", "indices", "code_counts", "loss"):
        first, second = (getattr(output, field) for output in outputs)
        assert (first.shape, first.dtype) == (second.shape, second.dtype)
    assert outputs[0].losses.keys() == outputs[1].losses.keys()
    for output in outputs:
        assert output.indices.dtype == torch.int64
        assert all(loss.shape == () for loss in output.losses.values())
        assert output.loss.item() == pytest.approx(sum(x.item() for x in output.losses.values()))
        counts = [int((output.indices == code).sum()) for code in range(quantizer.codebook_size)]
        assert output.code_counts.tolist() == counts


@EVERY
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_quantized_has_the_memory_format_of_the_latents(
    name: str, memory_format: torch.memory_format
) -> None:
    quantizer = trained_quantizer(name)
    output = quantizer(latents().contiguous(memory_format=memory_format))
    assert output.quantized.is_contiguous(memory_format=memory_format)
    assert quantizer.lookup(output.indices).is_contiguous()


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_gradients_reach_latents_and_weights(name: str, training: bool) -> None:
    quantizer = trained_quantizer(name).train(training)
    z = latents().requires_grad_()
    output = quantizer(z)
    upstream = torch.randn(2, 4, 3, 5)
    (gradient,) = torch.autograd.grad(output.quantized, z, upstream, retain_graph=True)
    assert torch.isfinite(gradient).all() and (gradient.norm(dim=1) > 0).all()
    (output.quantized.sum() + output.loss).backward()
    learned = [p for p in quantizer.parameters() if p.requires_grad]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in learned)


@EVERY
def test_evaluation_is_deterministic_and_has_no_side_effects(name: str) -> None:
    quantizer = trained_quantizer(name, 1).eval()
    before, random_state = weights(quantizer), torch.get_rng_state()
    first, second = quantizer(latents()), quantizer(latents())
    assert torch.equal(first.quantized, second.quantized)
    assert torch.equal(first.indices, second.indices)
    assert not changed(quantizer, before)
    assert torch.equal(torch.get_rng_state(), random_state)


@EVERY
def test_autocast_changes_nothing(name: str) -> None:
    quantizer = trained_quantizer(name).eval()
    expected = quantizer(latents().bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        output = quantizer(latents().bfloat16())
    assert output.quantized.dtype == torch.float32
    assert torch.equal(output.quantized, expected.quantized)
    assert torch.equal(output.indices, expected.indices)
    for key, loss in output.losses.items():
        assert loss.dtype == torch.float32 and torch.equal(loss, expected.losses[key])


@pytest.mark.parametrize(
    ("name", "module", "product"),
    [("vector", torch, "addmm"), ("gumbel", torch.nn.functional, "linear")],
)
def test_codes_are_not_chosen_in_tf32(
    monkeypatch: pytest.MonkeyPatch, name: str, module: Any, product: str
) -> None:
    original, precisions = getattr(module, product), []

    def record(*args: Any, **kwargs: Any) -> torch.Tensor:
        precisions.append(torch.get_float32_matmul_precision())
        return original(*args, **kwargs)

    monkeypatch.setattr(module, product, record)
    torch.set_float32_matmul_precision("high")  # as in training on a GPU
    build(name)(latents())
    assert precisions == ["highest"]
    assert torch.get_float32_matmul_precision() == "high"


@EVERY
def test_a_loaded_quantizer_continues_like_the_saved_one(name: str) -> None:
    quantizer, loaded = build(name), build_quantizer(CONFIGS[name]).train()
    quantizer.set_step(0)
    quantizer(latents(0))
    loaded.load_state_dict(copy.deepcopy(quantizer.state_dict()))
    outputs = []
    for each in (quantizer, loaded):
        torch.manual_seed(5)
        for step in (1, 2, 3):
            each.set_step(step)
            output = each(latents(step))
        outputs.append(output)
    assert torch.equal(outputs[0].quantized, outputs[1].quantized)
    assert torch.equal(outputs[0].loss, outputs[1].loss)
    assert not changed(loaded, weights(quantizer))


@EVERY
def test_a_nan_latent_gives_nan_and_a_valid_index(name: str) -> None:
    # training reports NaN; an index out of range would end it with an error about the GPU
    quantizer = trained_quantizer(name).eval()
    z = latents()
    z[0, :, 0, 0] = float("nan")
    output = quantizer(z)
    assert output.quantized[0, :, 0, 0].isnan().all()
    assert 0 <= output.indices.min() <= output.indices.max() < quantizer.codebook_size


@EVERY
@pytest.mark.parametrize(
    "z", [torch.randn(1, 4, 1, 1), torch.full((2, 4, 3, 3), 0.3), torch.zeros(1, 4, 2, 2)]
)
def test_one_latent_or_equal_latents_give_finite_numbers(name: str, z: torch.Tensor) -> None:
    quantizer = build(name)
    for _ in range(4):
        leaf = z.clone().requires_grad_()
        output = quantizer(leaf)
        (gradient,) = torch.autograd.grad(output.quantized.sum() + output.loss, leaf)
        for tensor in (output.quantized, output.loss, gradient):
            assert torch.isfinite(tensor).all()
    assert all(torch.isfinite(value).all() for value in quantizer.state_dict().values())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "nearest"}, r"'nearest' is unknown\. Choose one of vector"),
        ({**VECTOR, "codes": 8}, "quantizer 'vector': .*codes"),
    ],
)
def test_unknown_settings_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_quantizer(config)
