"""Sampling on a pretended GPU: how often the program waits for it; see fake_cuda.py."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_cuda import everywhere_cuda, fake_cuda, to_cuda

from taming.conditioning import CellClasses, ClassLabel, Conditioning, ImageCondition, Unconditional
from taming.generation import (
    CompiledSteps,
    Guidance,
    ImageGenerator,
    SamplingOptions,
    TokenChoice,
)
from taming.generation.steps import next_tokens
from taming.transformer import GPT, GPTConfig
from taming.vqgan import VQGAN

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*CUDA is not available",  # of autocast
    "ignore:Accessing the data pointer",  # by which weights that have moved are noticed
)

GRID = (4, 4)
IMAGE = ImageCondition(5, GRID, dropout=0.1)
CONTEXT = ImageCondition(5, GRID, dropout=0.1, as_context=True)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"greedy": True},
    "top_k": {"top_k": 3, "temperature": 0.9},
    "top_p": {"top_p": 0.9},
    "both, guided": {"top_k": 3, "top_p": 0.9, "guidance": Guidance(2.0)},
    "schedule": {"guidance": Guidance(2.0, "linear", interval=(0.2, 1))},
}


def build(conditioning: Conditioning, **options: Any) -> ImageGenerator:
    transformer = GPT(
        GPTConfig(
            **conditioning.transformer_config(GRID),
            codebook_size=8,
            num_layers=1,
            num_heads=2,
            embed_dim=8,
            **options,
        )
    )
    tokenizer = VQGAN(
        quantizer={"kind": "vector", "codebook_size": 8, "codebook_dim": 4},
        resolution=8,
        base_channels=4,
        channel_multipliers=[1, 2],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=4,
    )
    cells = CellClasses(5, 2, 8) if conditioning.takes_images else None
    generator = ImageGenerator(
        tokenizer, transformer, conditioning, GRID, condition_tokenizer=cells
    )
    return to_cuda(generator.eval())


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("num_given", [0, 5])
def test_it_waits_for_the_gpu_once_a_prefill_and_not_for_a_token(name: str, num_given: int) -> None:
    with fake_cuda() as watch:
        generator = build(ClassLabel(3, dropout=0.1))
        labels = torch.zeros(3, dtype=torch.int64)
        given = torch.zeros(3, num_given, dtype=torch.int64)
        options = SamplingOptions(seed=0, **SETTINGS[name])
        watch.forget()
        tokens = generator.sample_tokens(3, labels, given_tokens=given, options=options)
        assert tokens.shape == (3, 16) and everywhere_cuda(tokens)
        assert len(watch.waits) == 1 and not watch.scalars  # whether the logits are NaN
        assert len(watch.uploads) <= 8


@pytest.mark.parametrize("conditioning", [Unconditional(), IMAGE, CONTEXT], ids=lambda c: c.kind)
def test_conditions_larger_grids_and_completion(conditioning: Conditioning) -> None:
    with fake_cuda():
        generator = build(conditioning, positions="rotary_2d")
        to_cuda(generator.transformer, torch.bfloat16)
        guided = conditioning.takes_images
        condition = torch.zeros(2, 5, 8, 12) if guided else None
        guidance = Guidance(2.0 if guided else 1.0)
        options = SamplingOptions(seed=0, top_k=3, guidance=guidance, grid_size=(4, 6))
        images = generator.sample(2, condition, options=options)
        assert images.shape == (2, 3, 8, 12) and everywhere_cuda(images)
        condition = torch.zeros(2, 5, 8, 8, device="cuda") if guided else None
        completed = generator.complete(
            torch.zeros(2, 3, 8, 8), 2, condition, options=replace(options, grid_size=None)
        )
        assert completed.shape == (2, 3, 8, 8) and everywhere_cuda(completed)
        logits = generator.logits(torch.zeros(2, 3, dtype=torch.int64), condition)
        assert logits.shape == (2, 3, 8) and everywhere_cuda(logits)


@pytest.mark.parametrize("conditioning", [ClassLabel(3, 0.1), IMAGE, CONTEXT])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_step_has_nothing_that_a_graph_could_not_record(
    conditioning: Conditioning, bf16: bool
) -> None:
    with fake_cuda() as watch, torch.no_grad():
        transformer = build(conditioning, qk_norm=True).transformer
        to_cuda(transformer, torch.bfloat16 if bf16 else None)
        uniforms = torch.zeros(2, 16, dtype=torch.float64, device="cuda")
        choose = TokenChoice(uniforms, torch.ones(16, device="cuda"), top_k=3, top_p=0.9)
        prompt = conditioning.prompt(None, 4, "cuda")
        steps = CompiledSteps(transformer, choose, prompt, 16)
        steps.prefill(prompt, torch.zeros(2, 0, dtype=torch.int64, device="cuda"))
        steps.cache.span = 17
        latest = torch.zeros(2, 1, dtype=torch.int64, device="cuda")
        position = torch.ones(1, dtype=torch.int64, device="cuda")
        watch.forget()
        tokens = steps.run(next_tokens, latest, position)
        assert tokens.shape == (2,) and everywhere_cuda(tokens)
        assert not watch.waits and not watch.uploads and not watch.scalars
