"""Compiled steps, and steps captured as graphs: the same tokens as step by step."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from every_kind import CLASS, build, condition, draw, tiny
from recorded_graph import record_graphs
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from taming.conditioning import ClassLabel, Prompt
from taming.generation import ImageGenerator, decoding
from taming.generation.choice import TokenChoice, random_numbers
from taming.generation.compiled import CompiledDecoder
from taming.runtime.contexts import full_precision

cuda = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.compile])


@pytest.fixture(params=["recorded", cuda])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where steps are captured: on a GPU, or pretended on the CPU."""
    if request.param == "recorded":
        record_graphs(monkeypatch)
        yield "cpu"
    else:
        with full_precision():  # float32 and not TF32, which a training before may have allowed
            yield "cuda"


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    """Stands for the compiler, and counts what it is given."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    return counter


@pytest.fixture
def model() -> ImageGenerator:
    return tiny(ClassLabel(3), num_layers=1, embed_dim=8)


def draws_alike(model: ImageGenerator, condition: Tensor | None, **settings: Any) -> bool:
    """Whether eager and compiled steps give the same tokens; eager ones in a single batch."""
    eager = draw(model, condition, **settings | {"batch_size": None})
    assert settings.get("greedy") or len(eager.unique()) > 2
    return torch.equal(draw(model, condition, compile=True, **settings), eager)


def spans(model: ImageGenerator) -> list[int]:
    """Those of the steps that were compiled or captured."""
    assert model._sampler.compiled is not None
    return [span for _, span in model._sampler.compiled._captured]


def replays(model: ImageGenerator) -> list[int]:
    """How often each pretended graph was replayed."""
    steps: Any = model._sampler.compiled
    return [step.graph.num_replays for step in steps._captured.values()]


@pytest.mark.parametrize(
    "name",
    [
        "unconditional",
        "class zero rotary_2d",
        "image learned both ways",
        "image sinusoidal_2d",
        "context learned",
        "context rotary_2d",
        "class any order learned",
        "context any order rotary_2d",
    ],
)
def test_a_graph_draws_every_batch_and_window(name: str, device: str) -> None:
    model = build(name).to(device)
    settings: dict[str, Any] = {"temperature": 0.9, "top_k": 6, "top_p": 0.95}
    if not name.startswith("unconditional"):
        settings |= {"guidance_scale": 1.5, "guidance_interval": (0.2, 0.7)}
    given_tokens = torch.ones(3, 5, dtype=torch.int64)
    assert draws_alike(model, condition(name), seed=1, **settings)
    used = model._sampler.compiled
    assert draws_alike(
        model, condition(name, seed=2), seed=2, given_tokens=given_tokens, **settings
    )
    large = condition(name, seed=3, scale=2)
    assert draws_alike(model, large, seed=3, grid_size=(6, 8), **settings)
    num_kinds = 2 if "guidance_scale" in settings else 1  # steps of both halves, and of one
    assert model._sampler.compiled is used and len(spans(model)) == num_kinds
    assert device == "cuda" or sum(replays(model)) > 2 * (model.num_tokens - 1)
    assert draws_alike(model, condition(name), greedy=True)


def test_an_image_longer_than_a_span_has_several_graphs(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "SPAN", 4)  # a label and 12 tokens make 13
    model = build("class").to(device)
    for seed in (1, 2):
        assert draws_alike(model, torch.arange(3), seed=seed)
    assert spans(model) == [4, 8, 12]  # the last token is only predicted
    assert device == "cuda" or replays(model) == [2 * n for n in (3, 4, 4)]


def test_new_weights_need_a_new_graph(device: str) -> None:
    model = build("class").to(device)
    assert draws_alike(model, torch.arange(3), seed=1)
    used, tokens = model._sampler.compiled, draw(model, torch.arange(3), seed=1)
    for parameter in model.transformer.blocks.parameters():  # not those of the head
        parameter.data = parameter + torch.randn_like(parameter)
    assert draws_alike(model, torch.arange(3), seed=1)
    assert not torch.equal(draw(model, torch.arange(3), seed=1), tokens)
    assert model._sampler.compiled is not used


@pytest.mark.gpu
@pytest.mark.compile
@pytest.mark.parametrize("name", ["class rotary_2d", "image sinusoidal_2d both ways", "context"])
def test_bf16(name: str) -> None:
    """Rounding may take another token, but none that is much less probable."""
    model = build(name).to("cuda")
    model.transformer.bfloat16()
    labels = condition(name)
    greedy = draw(model, labels, greedy=True, compile=True)
    assert torch.equal(*(draw(model, labels, seed=1, compile=True) for _ in range(2)))
    assert len(spans(model)) == 1
    model.transformer.float()
    with full_precision():
        logits = model.logits(greedy, labels)
    greedy_logits = logits.gather(-1, greedy[..., None]).squeeze(-1)
    assert (logits.amax(-1) - greedy_logits).max() < 0.05 * logits.std()


@pytest.mark.compile
def test_compiled_steps_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SPAN", 4)
    counters.clear()
    model = build("context rotary_2d")
    settings = {"temperature": 0.9, "top_k": 6, "top_p": 0.95, "guidance_scale": 2.0}
    for seed in (2, 7):  # the memory of the first batch is used again
        large = condition("context", seed=seed, scale=2)
        assert draws_alike(model, large, seed=seed, grid_size=(6, 8), **settings)
    assert counters["stats"]["unique_graphs"] == 1  # for all spans


@pytest.mark.compile
def test_all_spans_share_one_compilation_and_unguided_tokens_add_one(
    counter: CompileCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "SPAN", 2)
    model = tiny(CLASS, num_layers=1, embed_dim=8)
    assert draws_alike(model, torch.arange(3), seed=1)
    assert counter.frame_count == 1
    guidance = {"guidance_scale": 2.0, "guidance_interval": (0.3, 0.7)}
    assert draws_alike(model, torch.arange(3), seed=1, **guidance)
    assert counter.frame_count == 3


@pytest.mark.compile
@pytest.mark.parametrize("count", [1, 3])
def test_all_windows_share_one_compilation(
    model: ImageGenerator, counter: CompileCounter, count: int
) -> None:
    assert draws_alike(model, torch.arange(count), count=count, seed=1, grid_size=(5, 6))
    assert counter.frame_count == 1


@pytest.mark.compile
def test_a_smaller_last_batch_needs_no_second_compilation(
    model: ImageGenerator, counter: CompileCounter
) -> None:
    model.conditioning = CLASS
    given_tokens = torch.arange(5)[:, None]
    settings: dict[str, Any] = {"seed": 1, "guidance_scale": 2.0, "batch_size": 3}
    for _ in range(2):
        assert draws_alike(
            model, torch.arange(5) % 3, count=5, given_tokens=given_tokens, **settings
        )
    assert counter.frame_count == 1


@pytest.mark.compile
def test_any_number_of_settings_in_sequence(model: ImageGenerator, counter: CompileCounter) -> None:
    """More than PyTorch allows of one function."""
    with torch._dynamo.config.patch(recompile_limit=1):
        for number in range(2):
            assert draws_alike(model, torch.arange(3), seed=1, temperature=1 + number)
    assert counter.frame_count == 2


def test_a_decoder_fits_only_its_own_kind_of_batch(model: ImageGenerator) -> None:
    one, two = (Prompt(torch.zeros(batch_size, 1, dtype=torch.int64)) for batch_size in (1, 2))
    transformer, choice = model.transformer, TokenChoice(random_numbers(0, range(2), 12))
    decoder = CompiledDecoder(transformer, choice, two, 12)
    assert decoder.fits(transformer, TokenChoice(random_numbers(1, range(2), 12)), two, 12)
    assert not decoder.fits(transformer, TokenChoice(choice.uniforms, top_k=2), two, 12)
    assert not decoder.fits(transformer, choice, two, 11)
    for mode in (torch.autocast("cpu", torch.bfloat16), torch.inference_mode()):
        with mode:
            assert not decoder.fits(transformer, choice, two, 12)
    greedy = CompiledDecoder(transformer, TokenChoice(), two, 12)
    assert greedy.fits(transformer, TokenChoice(), two, 12)
    assert not greedy.fits(transformer, TokenChoice(), one, 12)  # no random numbers tell
    transformer.bfloat16()
    assert not decoder.fits(transformer, choice, two, 12)
