"""Sampling and training on a device read from it as seldom as can be; see fake_device.py."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_device import DEVICE, FakeDevice, everywhere_fake, fake_device
from tiny_models import tiny_vqgan
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

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

# by which weights that have moved are noticed
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer")

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


def build(conditioning: Conditioning, **options: Any) -> ImageGenerator:
    sizes = {"codebook_size": 8, "num_layers": 1, "num_heads": 2, "embed_dim": 8}
    transformer = GPT(GPTConfig(**conditioning.transformer_config(GRID), **sizes, **options))
    cells = CellClasses(5, 2, 4) if conditioning.takes_images else None
    return ImageGenerator(tokenizer(), transformer, conditioning, GRID, cells).eval()


# --- the device itself ----------------------------------------------------------------------------


def forgotten_mask(x: Tensor) -> Tensor:
    return torch.where(torch.ones(4, dtype=torch.bool), x, 0.0)


FORGOTTEN: dict[str, Callable[[Tensor], Any]] = {
    "weight": nn.Linear(4, 2),
    "summand": lambda x: x + torch.zeros(4),
    "mask": forgotten_mask,
    "indices": lambda x: F.embedding(torch.zeros(2, dtype=torch.int64), x),
    "indexed": lambda x: torch.zeros(4)[x.long()],
    "part": lambda x: torch.cat([x, torch.zeros(2, 4)]),
    "target": lambda x: F.mse_loss(x, torch.zeros(2, 4)),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_what_was_forgotten_on_the_cpu_fails(name: str) -> None:
    with fake_device():
        x = torch.zeros(2, 4, device=DEVICE)
        with pytest.raises(RuntimeError, match="device"):
            FORGOTTEN[name](x)


def test_reads_are_noted_and_give_ones() -> None:
    with fake_device() as device:
        x = torch.zeros(2, 3).to(DEVICE)
        assert len(device.uploads) == 1 and not device.reads
        assert x.sum().item() == 1 and x.tolist() == [[1, 1, 1], [1, 1, 1]]
        assert bool((x == 0).all()) and not bool(x.isnan().any())
        assert torch.equal(x.cpu(), torch.ones(2, 3))
        assert torch.zeros(2, 3).copy_(x).sum() == 6
        assert x[x > 0].shape == (1,)
        assert len(device.reads) == 7
        assert x[torch.arange(2)].shape == (2, 3) and len(device.uploads) == 2
        assert (x * torch.tensor(2.0)).device == DEVICE and len(device.scalars) == 1


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "conv2d": lambda x, w: F.conv2d(x, w),
    "linear": lambda x, w: F.linear(x, w[:, :, 0, 0]),
    "matmul": lambda x, w: x @ x.transpose(2, 3),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, x, x),
    "group_norm": lambda x, w: F.group_norm(x, 2),
    "layer_norm": lambda x, w: F.layer_norm(x, (4,)),
    "normalize": lambda x, w: F.normalize(x, dim=1),
    "softmax": lambda x, w: x.softmax(1),
    "sum": lambda x, w: x.sum((0, 2, 3)),
    "mean": lambda x, w: x.mean(),
    "square": lambda x, w: x.square(),
    "pow": lambda x, w: x**2,
    "exp": lambda x, w: x.exp(),
    "silu": lambda x, w: F.silu(x),
    "mse_loss": lambda x, w: F.mse_loss(x, x.float()),
    "l1_loss": lambda x, w: F.l1_loss(x, x),
    "cross_entropy": lambda x, w: F.cross_entropy(x, x.argmax(1)),
    "interpolate": lambda x, w: F.interpolate(x, scale_factor=2.0),
    "cat": lambda x, w: torch.cat([x, x.float()]),
    "add": lambda x, w: x + w[0, 0],
    "addcmul": lambda x, w: torch.addcmul(x, x, w[0, 0]),
}


def autocast_dtypes(device: str, dtype: torch.dtype) -> dict[str, torch.dtype]:
    x, w = torch.empty(2, 4, 4, 4, dtype=dtype, device=device), torch.empty(4, 4, 1, 1).to(device)
    torch.set_autocast_dtype(device, torch.bfloat16)
    torch.set_autocast_enabled(device, True)  # `torch.autocast` would look for a GPU
    try:
        return {name: operation(x, w).dtype for name, operation in OPERATIONS.items()}
    finally:
        torch.set_autocast_enabled(device, False)
        torch.clear_autocast_cache()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_is_that_of_cuda(dtype: torch.dtype) -> None:
    with fake_device():
        actual = autocast_dtypes("npy", dtype)
    with FakeTensorMode():
        assert actual == autocast_dtypes("cuda", dtype)


# --- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "num_given"), [*((n, 0) for n in SETTINGS), ("filtered", 2)])
def test_sampling_waits_for_the_gpu_once_per_prefill(name: str, num_given: int) -> None:
    with fake_device() as device:
        generator = build(ClassLabel(3, dropout=0.1)).to(DEVICE)
        labels = torch.zeros(3, dtype=torch.int64)
        prompt_tokens = torch.zeros(3, num_given, dtype=torch.int64)
        options = SamplingOptions(seed=0, **SETTINGS[name])
        device.forget()
        tokens = generator.sample_tokens(3, labels, given_tokens=prompt_tokens, options=options)
        assert tokens.shape == (3, 4) and everywhere_fake(tokens)
        assert len(device.reads) == 1 and not device.scalars  # whether the logits are NaN
        assert len(device.uploads) <= 8


@pytest.mark.parametrize("conditioning", [Unconditional(), IMAGE, CONTEXT], ids=lambda c: c.kind)
def test_conditions_and_larger_grids(conditioning: Conditioning) -> None:
    with fake_device():
        generator = build(conditioning, positions="rotary_2d").to(DEVICE)
        generator.transformer.to(torch.bfloat16)
        guided = conditioning.takes_images
        condition = torch.zeros(2, 5, 4, 6) if guided else None
        guidance = Guidance(2.0 if guided else 1.0)
        options = SamplingOptions(seed=0, top_k=3, guidance=guidance, grid_size=(2, 3))
        tokens = generator.sample_tokens(2, condition, options=options)
        assert tokens.shape == (2, 6) and everywhere_fake(tokens)
        condition = torch.zeros(2, 5, 4, 4, device=DEVICE) if guided else None
        logits = generator.logits(torch.zeros(2, 3, dtype=torch.int64), condition)
        assert logits.shape == (2, 3, 8) and everywhere_fake(logits)


@pytest.mark.parametrize("conditioning", [ClassLabel(3, 0.1), IMAGE, CONTEXT])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_can_be_recorded_as_a_graph(conditioning: Conditioning, dtype: torch.dtype) -> None:
    with fake_device() as device, torch.no_grad():
        transformer = build(conditioning, qk_norm=True).transformer.to(DEVICE, dtype)
        uniforms = torch.zeros(2, 4, dtype=torch.float64, device=DEVICE)
        scales = torch.ones(4, device=DEVICE)
        choose = TokenChoice(uniforms, scales, range(4), top_k=3, top_p=0.9)
        prompt = conditioning.prompt(None, 4, DEVICE)
        steps = CompiledDecoder(transformer, choose, prompt, 4)
        steps.prefill(prompt, torch.zeros(2, 0, dtype=torch.int64, device=DEVICE), 1)
        visible = torch.arange(5, device=DEVICE)
        latest = torch.zeros(2, 1, dtype=torch.int64, device=DEVICE)
        position = torch.ones(1, dtype=torch.int64, device=DEVICE)
        device.forget()
        tokens = steps.run(next_tokens, True, latest, position, visible)
        assert tokens.shape == (2, 1) and everywhere_fake(tokens)
        assert not device.reads and not device.uploads and not device.scalars


# --- training steps -------------------------------------------------------------------------------


def reads_and_uploads(
    module: TrainingModule, batch: dict[str, Tensor], device: FakeDevice
) -> list[str]:
    """What the second training step reads from the device, or brings to it."""
    module.to(DEVICE).train()
    batch = {name: tensor.to(DEVICE) for name, tensor in batch.items()}
    for _ in range(2):
        device.forget()
        with torch.autocast("npy", torch.bfloat16):
            loss = module.training_step(batch, 0)["loss"]
        loss.backward()
    trained = [p for p in module.parameters() if p.requires_grad]
    gradients = [p.grad for p in trained if p.grad is not None]
    assert everywhere_fake(gradients) and len(gradients) > 0.8 * len(trained)
    return [*device.reads, *device.uploads]


@pytest.mark.parametrize("conditioning", [ClassLabel(3, 0.1), IMAGE, CONTEXT], ids=lambda c: c.kind)
def test_a_step_of_stage_2_waits_for_nothing(conditioning: Conditioning) -> None:
    module = TransformerTraining(
        build(conditioning, dropout=0.1),
        optimizer=OptimizerConfig(1e-3),
        pkeep=0.9,
        checkpointing=True,
    )
    indices = torch.zeros(4, *GRID, dtype=torch.int64)
    batch = {"indices": indices, "condition_indices": indices, "labels": indices[:, 0, 0]}
    with fake_device() as device:
        assert reads_and_uploads(module, batch, device) == []


QUANTIZERS: dict[str, dict[str, Any]] = {
    "vector": {"cosine": True, "init": "uniform"},
    "kmeans": {"init": "kmeans", "revive_after": 10, "gradient": "rotation"},
    "ema": {"ema_decay": 0.9, "revive_after": 10},
    "entropy": {"entropy_weight": 0.1},
    "gumbel": {"kind": "gumbel"},
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_step_of_stage_1_waits_for_nothing(name: str) -> None:
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
    vqgan = tokenizer(resolution=16, **QUANTIZERS[name])
    module = VQGANTraining(vqgan, None, adversary, optimizer=OptimizerConfig(1e-3))
    with fake_device() as device:
        assert reads_and_uploads(module, {"images": torch.zeros(4, 3, 16, 16)}, device) == []
