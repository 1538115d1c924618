"""Sampling and training on a pretended GPU wait for it as seldom as can be; see fake_cuda.py."""

from typing import Any

import pytest
import torch
from fake_cuda import Watch, everywhere_cuda, fake_cuda, to_cuda
from tiny_models import tiny_vqgan
from torch import Tensor

from taming.conditioning import ClassLabel, Conditioning, ImageCondition, Unconditional
from taming.discriminators import PatchDiscriminator
from taming.generation import Guidance, ImageGenerator, SamplingOptions
from taming.generation.choice import TokenChoice
from taming.generation.compiled import CompiledDecoder
from taming.generation.decoding import next_tokens
from taming.tokenizer import VQGAN, CellClasses
from taming.training import Adversary, OptimizerConfig, TransformerTraining, VQGANTraining
from taming.training.module import TrainingModule
from taming.transformer import GPT, GPTConfig

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*CUDA is not available",  # of autocast
    "ignore:Accessing the data pointer",  # by which weights that have moved are noticed
)

GRID = (2, 2)
IMAGE = ImageCondition(5, GRID, dropout=0.1)
CONTEXT = ImageCondition(5, GRID, dropout=0.1, as_context=True)
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"greedy": True},
    "filtered": {"top_k": 3, "top_p": 0.9, "temperature": 0.9},
    "guided": {"guidance": Guidance(2.0, "linear", interval=(0.2, 1))},
}


def tokenizer(resolution: int = 4, **quantizer: Any) -> VQGAN:
    codes = {"kind": "vector", "codebook_size": 8, "codebook_dim": 4, **quantizer}
    return tiny_vqgan(resolution=resolution, quantizer=codes)


def build_on_cpu(conditioning: Conditioning, **options: Any) -> ImageGenerator:
    sizes = {"codebook_size": 8, "num_layers": 1, "num_heads": 2, "embed_dim": 8}
    transformer = GPT(GPTConfig(**conditioning.transformer_config(GRID), **sizes, **options))
    cells = CellClasses(5, 2, 4) if conditioning.takes_images else None
    return ImageGenerator(tokenizer(), transformer, conditioning, GRID, cells).eval()


def build(conditioning: Conditioning, **options: Any) -> ImageGenerator:
    return to_cuda(build_on_cpu(conditioning, **options))


@pytest.mark.parametrize(("name", "num_given"), [*((n, 0) for n in SETTINGS), ("filtered", 2)])
def test_sampling_waits_for_the_gpu_once_per_prefill(name: str, num_given: int) -> None:
    with fake_cuda() as watch:
        generator = build(ClassLabel(3, dropout=0.1))
        labels = torch.zeros(3, dtype=torch.int64)
        prompt_tokens = torch.zeros(3, num_given, dtype=torch.int64)
        options = SamplingOptions(seed=0, **SETTINGS[name])
        watch.forget()
        tokens = generator.sample_tokens(3, labels, given_tokens=prompt_tokens, options=options)
        assert tokens.shape == (3, 4) and everywhere_cuda(tokens)
        assert len(watch.waits) == 1 and not watch.scalars  # whether the logits are NaN
        assert len(watch.uploads) <= 8


@pytest.mark.parametrize("conditioning", [Unconditional(), IMAGE, CONTEXT], ids=lambda c: c.kind)
def test_conditions_and_larger_grids(conditioning: Conditioning) -> None:
    with fake_cuda():
        generator = build(conditioning, positions="rotary_2d")
        to_cuda(generator.transformer, torch.bfloat16)
        guided = conditioning.takes_images
        condition = torch.zeros(2, 5, 4, 6) if guided else None
        guidance = Guidance(2.0 if guided else 1.0)
        options = SamplingOptions(seed=0, top_k=3, guidance=guidance, grid_size=(2, 3))
        tokens = generator.sample_tokens(2, condition, options=options)
        assert tokens.shape == (2, 6) and everywhere_cuda(tokens)
        condition = torch.zeros(2, 5, 4, 4, device="cuda") if guided else None
        logits = generator.logits(torch.zeros(2, 3, dtype=torch.int64), condition)
        assert logits.shape == (2, 3, 8) and everywhere_cuda(logits)


@pytest.mark.parametrize("conditioning", [ClassLabel(3, 0.1), IMAGE, CONTEXT])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_step_can_be_recorded_as_a_graph(conditioning: Conditioning, bf16: bool) -> None:
    with fake_cuda() as watch, torch.no_grad():
        transformer = build(conditioning, qk_norm=True).transformer
        to_cuda(transformer, torch.bfloat16 if bf16 else None)
        uniforms = torch.zeros(2, 4, dtype=torch.float64, device="cuda")
        scales = torch.ones(4, device="cuda")
        choose = TokenChoice(uniforms, scales, range(4), top_k=3, top_p=0.9)
        prompt = conditioning.prompt(None, 4, "cuda")
        steps = CompiledDecoder(transformer, choose, prompt, 4)
        steps.prefill(prompt, torch.zeros(2, 0, dtype=torch.int64, device="cuda"))
        visible = torch.arange(5, device="cuda")
        latest = torch.zeros(2, 1, dtype=torch.int64, device="cuda")
        position = torch.ones(1, dtype=torch.int64, device="cuda")
        watch.forget()
        tokens = steps.run(next_tokens, True, latest, position, visible)
        assert tokens.shape == (2,) and everywhere_cuda(tokens)
        assert not watch.waits and not watch.uploads and not watch.scalars


def steps_wait_for(module: TrainingModule, batch: dict[str, Tensor], watch: Watch) -> list[str]:
    """What the second training step waits for, or brings from the CPU."""
    to_cuda(module).train()
    for _ in range(2):
        watch.forget()
        loss = module.training_step(batch, 0)["loss"]
        assert loss.device.type == "cuda" and loss.requires_grad and loss.ndim == 0
    return [*watch.waits, *watch.uploads]


@pytest.mark.parametrize("conditioning", [ClassLabel(3, 0.1), IMAGE, CONTEXT], ids=lambda c: c.kind)
def test_a_step_of_stage_2_waits_for_nothing(conditioning: Conditioning) -> None:
    module = TransformerTraining(
        build_on_cpu(conditioning, dropout=0.1), optimizer=OptimizerConfig(1e-3), pkeep=0.9
    )
    with fake_cuda(bf16=True) as watch:
        indices = torch.zeros(4, *GRID, dtype=torch.int64, device="cuda")
        batch = {"indices": indices, "condition_indices": indices, "labels": indices[:, 0, 0]}
        assert steps_wait_for(module, batch, watch) == []


def test_a_step_of_stage_1_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def grad(outputs: Tensor, inputs: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
        """Stands for `torch.autograd.grad`: backward passes cannot be pretended."""
        assert outputs.device == inputs.device and outputs.requires_grad
        return (torch.zeros_like(inputs),)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    adversary = Adversary(
        PatchDiscriminator(base_channels=4, num_layers=1, norm="batch"),
        optimizer=OptimizerConfig(1e-3),
        start=0,
        warmup=0,
        ramp=0,
        weight=0.8,
        adaptive=True,
        lecam_weight=0.1,
        augmentation=["color", "translation", "cutout"],
    )
    vqgan = tokenizer(resolution=16, cosine=True, init="uniform")
    module = VQGANTraining(vqgan, None, adversary, optimizer=OptimizerConfig(1e-3))
    with fake_cuda(bf16=True) as watch:
        batch = {"images": torch.zeros(4, 3, 16, 16, device="cuda")}
        assert steps_wait_for(module, batch, watch) == []
