"""What holds for every quantizer and every option."""

import copy
from typing import Any

import pytest
import torch

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
every = pytest.mark.parametrize("name", CONFIGS)


def build(name: str) -> Quantizer:
    torch.manual_seed(0)
    return build_quantizer(CONFIGS[name])


def latents(seed: int = 1) -> torch.Tensor:
    return 2 * torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(seed))


def trained(name: str, steps: int = 2) -> Quantizer:
    quantizer = build(name).train()
    for seed in range(steps):
        quantizer(latents(seed))
    return quantizer


@every
def test_lookup_gives_what_evaluation_gives(name: str) -> None:
    quantizer = trained(name).eval()
    output = quantizer(latents())
    assert output.quantized.shape == (2, 4, 3, 5)
    assert torch.equal(quantizer.lookup(output.indices), output.quantized)
    assert len(output.indices.unique()) > 3  # or it would say little


@every
def test_training_and_evaluation_return_the_same_kind_of_output(name: str) -> None:
    quantizer = build(name)
    outputs = [quantizer.train(mode)(latents()) for mode in (True, False)]
    for field in ("quantized", "indices", "code_counts", "loss"):
        one, other = (getattr(output, field) for output in outputs)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert outputs[0].losses.keys() == outputs[1].losses.keys()
    for output in outputs:
        assert output.indices.dtype == torch.int64
        assert all(loss.shape == () for loss in output.losses.values())
        terms = [loss.item() for loss in output.losses.values()]
        assert output.loss.item() == pytest.approx(sum(terms))
        assert output.code_counts.tolist() == [
            int((output.indices == code).sum()) for code in range(quantizer.codebook_size)
        ]


@every
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_memory_format_of_the_latents_stays(
    name: str, memory_format: torch.memory_format
) -> None:
    """A permuted view would put the whole decoder into channels_last, asked for or not."""
    images = latents().contiguous(memory_format=memory_format)
    quantizer = trained(name)
    assert quantizer(images).quantized.is_contiguous(memory_format=memory_format)
    assert quantizer.lookup(quantizer(images).indices).is_contiguous()


@every
@pytest.mark.parametrize("training", [True, False])
def test_gradients_reach_latents_and_weights(name: str, training: bool) -> None:
    quantizer = trained(name).train(training)
    z = latents().requires_grad_()
    output = quantizer(z)
    arriving = torch.randn(2, 4, 3, 5)
    (gradient,) = torch.autograd.grad(output.quantized, z, arriving, retain_graph=True)
    assert torch.isfinite(gradient).all()
    assert (gradient.norm(dim=1) > 0).all()
    (output.quantized.sum() + output.loss).backward()
    learned = [p for p in quantizer.parameters() if p.requires_grad]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in learned)


@every
def test_evaluation_is_deterministic_and_leaves_no_trace(name: str) -> None:
    quantizer = trained(name, 1).eval()
    before = copy.deepcopy(quantizer.state_dict())
    random_state = torch.get_rng_state()
    first, second = quantizer(latents()), quantizer(latents())
    assert torch.equal(first.quantized, second.quantized)
    assert torch.equal(first.indices, second.indices)
    assert all(torch.equal(before[key], value) for key, value in quantizer.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


@every
def test_all_is_in_float32_under_autocast(name: str) -> None:
    quantizer = trained(name).eval()
    plain = quantizer(latents().bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        output = quantizer(latents().bfloat16())
    assert output.quantized.dtype == torch.float32
    assert torch.equal(output.quantized, plain.quantized)
    assert torch.equal(output.indices, plain.indices)
    for key, loss in output.losses.items():
        assert loss.dtype == torch.float32
        assert torch.equal(loss, plain.losses[key])


@pytest.mark.parametrize(("name", "product"), [("vector", "addmm"), ("gumbel", "linear")])
def test_codes_are_not_chosen_in_tf32(
    monkeypatch: pytest.MonkeyPatch, name: str, product: str
) -> None:
    module, seen = torch if product == "addmm" else torch.nn.functional, []
    original = getattr(module, product)

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return original(*args, **kwargs)

    monkeypatch.setattr(module, product, watched)
    torch.set_float32_matmul_precision("high")  # as training on a GPU does
    build(name)(latents())
    assert seen == ["highest"]
    assert torch.get_float32_matmul_precision() == "high"


@every
def test_a_saved_quantizer_goes_on_as_the_first_would(name: str) -> None:
    quantizer = build(name)
    quantizer.train().set_step(0)
    quantizer(latents(0))
    other = build_quantizer(CONFIGS[name])
    other.load_state_dict(copy.deepcopy(quantizer.state_dict()))
    outputs = []
    for each in (quantizer, other):
        torch.manual_seed(5)
        for step in (1, 2, 3):
            each.train().set_step(step)
            output = each(latents(step))
        outputs.append(output)
    assert torch.equal(outputs[0].quantized, outputs[1].quantized)
    assert torch.equal(outputs[0].loss, outputs[1].loss)
    for key, value in quantizer.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


@every
def test_a_latent_that_is_nan_shows_and_breaks_nothing_else(name: str) -> None:
    # the training reports NaN; an index out of range would end it with an error about the GPU
    quantizer = trained(name).eval()
    z = latents()
    z[0, :, 0, 0] = float("nan")
    output = quantizer(z)
    assert output.quantized[0, :, 0, 0].isnan().all()
    assert output.indices.min() >= 0
    assert output.indices.max() < quantizer.codebook_size


@every
def test_one_latent_and_equal_latents_are_enough(name: str) -> None:
    for z in (torch.randn(1, 4, 1, 1), torch.full((2, 4, 3, 3), 0.3), torch.zeros(1, 4, 2, 2)):
        quantizer = build(name).train()
        for _ in range(4):
            leaf = z.clone().requires_grad_()
            output = quantizer(leaf)
            (output.quantized.sum() + output.loss).backward()
            assert torch.isfinite(output.quantized).all()
            assert torch.isfinite(output.loss)
            assert leaf.grad is not None
            assert torch.isfinite(leaf.grad).all()
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
