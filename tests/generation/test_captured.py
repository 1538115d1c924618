"""Compiled steps on a GPU, where they are captured as graphs: the same tokens as step by step."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from every_kind import KINDS, build, condition, sampling
from torch import Tensor

from taming.conditioning import ClassLabel
from taming.contexts import full_precision
from taming.generation import ImageGenerator
from taming.transformer import GPT, GPTConfig

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.compile,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Float32 and not TF32, which a training before may have left allowed."""
    with full_precision():
        yield


def spans(model: ImageGenerator) -> list[int]:
    """Those of the graphs that were captured."""
    assert model._compiled is not None
    return list(model._compiled._steps)


def draws_alike(model: ImageGenerator, asked_for: Tensor | None, **settings: Any) -> bool:
    """Whether eager and compiled steps give the same tokens."""
    given = settings.pop("given_tokens", None)
    eager = model.sample_tokens(3, asked_for, given_tokens=given, options=sampling(**settings))
    assert eager.device.type == DEVICE
    assert settings.get("greedy") or len(eager.unique()) > 2
    options = sampling(compile=True, **settings)
    drawn = model.sample_tokens(3, asked_for, given_tokens=given, options=options)
    return torch.equal(drawn, eager)


@pytest.mark.parametrize("name", KINDS)
def test_captured_steps_give_the_same_tokens(name: str) -> None:
    model = build(name).to(DEVICE)
    settings: dict[str, Any] = {"temperature": 0.9, "top_k": 6, "top_p": 0.95}
    if not name.startswith("unconditional"):
        settings["guidance_scale"] = 1.5
    assert draws_alike(model, condition(name), seed=2, **settings)
    used, given = model._compiled, torch.ones(3, 5, dtype=torch.int64)
    assert draws_alike(model, condition(name, seed=9), seed=7, **settings)  # the same graph again
    assert draws_alike(model, condition(name), seed=3, given_tokens=given, **settings)
    assert model._compiled is used and len(spans(model)) == 1
    assert draws_alike(model, condition(name), greedy=True)


def test_one_graph_takes_batch_after_batch() -> None:
    model = build("context rotary_2d").to(DEVICE)
    asked_for = condition("context rotary_2d", count=9)
    eager = model.sample_tokens(9, asked_for, seed=4)
    assert torch.equal(
        model.sample_tokens(9, asked_for, options=sampling(seed=4, batch_size=3, compile=True)),
        eager,
    )
    assert len(spans(model)) == 1


def test_an_image_longer_than_a_span() -> None:
    torch.manual_seed(0)
    conditioning = ClassLabel(3)
    transformer = GPT(
        GPTConfig(
            **conditioning.transformer_config((17, 18)),
            codebook_size=8,
            num_layers=2,
            num_heads=2,
            embed_dim=16,
        )
    )
    with torch.no_grad():
        transformer.head.weight.mul_(50)  # far from uniform
    model = ImageGenerator(None, transformer, conditioning, (17, 18)).eval().to(DEVICE)
    for seed in (1, 2):
        assert draws_alike(model, torch.arange(3), seed=seed)
    assert spans(model) == [256, 307]  # a label and 306 tokens


@pytest.mark.parametrize("name", ["class sinusoidal_2d", "context"])
def test_a_window_that_slides(name: str) -> None:
    model = build(name).to(DEVICE)
    settings: dict[str, Any] = {"grid_size": (6, 8), "guidance_scale": 2.0}
    for seed in (1, 2):
        assert draws_alike(model, condition(name, scale=2), seed=seed, **settings)
    assert len(spans(model)) == 1


@pytest.mark.parametrize("name", ["class rotary_2d", "image sinusoidal_2d both ways", "context"])
def test_bf16(name: str) -> None:
    """Rounding may take another token, but none that is much less probable."""
    model = build(name).to(DEVICE)
    model.transformer.bfloat16()
    asked_for = condition(name)
    greedy = model.sample_tokens(3, asked_for, options=sampling(greedy=True, compile=True))
    drawn = [
        model.sample_tokens(3, asked_for, options=sampling(seed=1, compile=True)) for _ in range(2)
    ]
    assert torch.equal(*drawn)
    assert len(spans(model)) == 1
    model.transformer.float()
    logits = model.logits(greedy, asked_for)
    taken = logits.gather(-1, greedy[..., None]).squeeze(-1)
    assert (logits.amax(-1) - taken).max() < 0.05 * logits.std()
