"""What compiled steps are used again for; that they draw the same is in test_every_generator.py."""

from functools import partial
from typing import Any

import pytest
import torch
from every_kind import KINDS, build, condition, sampling
from recorded_graph import record_graphs
from torch._dynamo.testing import CompileCounter

from taming.conditioning import ClassLabel, Prompt
from taming.generation import CompiledSteps, ImageGenerator, TokenChoice, compiled, random_numbers
from taming.transformer import GPT, GPTConfig

GRID = (3, 4)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    """Stands for the compiler, and counts what it is given."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    return counter


@pytest.fixture
def model() -> ImageGenerator:
    torch.manual_seed(0)
    conditioning = ClassLabel(3)
    transformer = GPT(
        GPTConfig(
            **conditioning.transformer_config(GRID),
            codebook_size=8,
            num_layers=1,
            num_heads=2,
            embed_dim=8,
        )
    )
    return ImageGenerator(None, transformer, conditioning, GRID).eval()


def prompt(batch_size: int) -> Prompt:
    return Prompt(torch.zeros(batch_size, 1, dtype=torch.int64))


@pytest.mark.compile
@pytest.mark.parametrize("count", [1, 3])
def test_one_compilation_is_enough_for_all_windows(
    model: ImageGenerator, counter: CompileCounter, count: int
) -> None:
    labels = torch.arange(count)
    eager = model.sample_tokens(count, labels, options=sampling(seed=1, grid_size=(5, 6)))
    drawn = model.sample_tokens(
        count, labels, options=sampling(seed=1, grid_size=(5, 6), compile=True)
    )
    assert torch.equal(drawn, eager)
    assert counter.frame_count == 1


@pytest.mark.compile
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_one_compilation_is_enough_for_a_last_batch_that_is_smaller(
    model: ImageGenerator, counter: CompileCounter, dropout: float
) -> None:
    model.conditioning = ClassLabel(3, dropout)
    settings: dict[str, Any] = {"seed": 1}
    given = torch.arange(5)[:, None]
    if dropout > 0:
        settings["guidance_scale"] = 2.0
    labels = torch.arange(5) % 3
    eager = model.sample_tokens(5, labels, given_tokens=given, options=sampling(**settings))
    for _ in range(2):
        drawn = model.sample_tokens(
            5, labels, given_tokens=given, options=sampling(**settings, batch_size=3, compile=True)
        )
        assert torch.equal(drawn, eager)
    assert counter.frame_count == 1


def test_steps_fit_their_own_kind_of_batch_alone(
    model: ImageGenerator, counter: CompileCounter
) -> None:
    transformer = model.transformer
    drawn = TokenChoice(random_numbers(0, range(2), 12))
    made = CompiledSteps(transformer, drawn, prompt(2), 12)
    assert made.fits(transformer, TokenChoice(random_numbers(1, range(2), 12)), prompt(2), 12)
    assert not made.fits(transformer, TokenChoice(drawn.uniforms, top_k=2), prompt(2), 12)
    assert not made.fits(transformer, drawn, prompt(2), 11)
    with torch.autocast("cpu", torch.bfloat16):
        assert not made.fits(transformer, drawn, prompt(2), 12)
    greedy = CompiledSteps(transformer, TokenChoice(), prompt(2), 12)
    assert greedy.fits(transformer, TokenChoice(), prompt(2), 12)
    assert not greedy.fits(transformer, TokenChoice(), prompt(1), 12)  # no random numbers tell
    transformer.bfloat16()
    assert not made.fits(transformer, drawn, prompt(2), 12)


def test_a_graph_is_of_the_weights_it_was_captured_with(
    model: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = record_graphs(monkeypatch)
    drawn = model.sample_tokens(3, torch.arange(3), options=sampling(seed=1, compile=True))
    for parameter in model.transformer.blocks.parameters():  # not those of the head
        parameter.data = parameter + torch.randn_like(parameter)
    eager = model.sample_tokens(3, torch.arange(3), seed=1)
    assert not torch.equal(eager, drawn)
    assert torch.equal(
        model.sample_tokens(3, torch.arange(3), options=sampling(seed=1, compile=True)), eager
    )
    assert len(graphs) == 2


@pytest.mark.compile
def test_any_number_of_settings_after_one_another(
    model: ImageGenerator, counter: CompileCounter
) -> None:
    """More than PyTorch allows of one function."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for number in range(5):
            settings: dict[str, Any] = {"seed": 1, "temperature": 1 + number}
            eager = model.sample_tokens(2, torch.arange(2), options=sampling(**settings))
            drawn = model.sample_tokens(
                2, torch.arange(2), options=sampling(**settings, compile=True)
            )
            assert torch.equal(drawn, eager)
    assert counter.frame_count == 5


@pytest.mark.compile
def test_memory_of_inference_mode_is_not_used_outside(
    model: ImageGenerator, counter: CompileCounter
) -> None:
    with torch.inference_mode():
        inside = model.sample_tokens(2, torch.arange(2), options=sampling(seed=1, compile=True))
    assert torch.equal(
        model.sample_tokens(2, torch.arange(2), options=sampling(seed=1, compile=True)), inside
    )


@pytest.mark.parametrize("name", KINDS)
def test_a_recorded_graph_draws_every_batch_and_window(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = record_graphs(monkeypatch)
    model = build(name)
    settings: dict[str, Any] = {"temperature": 0.9, "top_k": 6, "top_p": 0.95}
    if not name.startswith("unconditional"):
        settings |= {"guidance_scale": 1.5, "guidance_schedule": "linear"}
    for seed, scale in ((1, 1), (2, 1), (3, 2)):
        settings |= {"seed": seed, "grid_size": (3 * scale, 4 * scale)}
        asked_for = condition(name, seed=seed, scale=scale)
        eager = model.sample_tokens(3, asked_for, options=sampling(**settings))
        assert torch.equal(
            model.sample_tokens(3, asked_for, options=sampling(compile=True, **settings)), eager
        )
    assert len(graphs) == 1 and graphs[0].num_replays > 2 * (model.num_tokens - 1)


def test_an_image_longer_than_a_span_has_two_graphs(
    model: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "SHORTEST_SPAN", 4)  # a label and 12 tokens make 13
    graphs = record_graphs(monkeypatch)
    for seed in (1, 2):
        eager = model.sample_tokens(3, torch.arange(3), seed=seed)
        drawn = model.sample_tokens(3, torch.arange(3), options=sampling(seed=seed, compile=True))
        assert torch.equal(drawn, eager)
    assert [graph.num_replays for graph in graphs] == [2 * n for n in (3, 4, 4)]  # 4, 8, 13
