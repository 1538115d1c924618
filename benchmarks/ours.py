"""This program's side: `training_step` of both stages, `encode`, `decode`, `sample_tokens`.

What the peers do not do (averaged weights, gradient clipping, codebook revival) is off.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from serve import autocast  # the file that runs this one

import taming
from taming.conditioning import ClassLabel, Conditioning, Unconditional
from taming.discriminators import PatchDiscriminator
from taming.generation import Guidance, ImageGenerator, SamplingOptions
from taming.losses import FrozenNetwork, LPIPSLoss
from taming.sequence import to_indices
from taming.training import Adversary, OptimizerConfig, TransformerTraining, VQGANTraining
from taming.transformer import GPT, GPTConfig
from taming.vqgan import VQGAN

Call = Callable[[], torch.Tensor]
NEVER = 10**9  # a step that is not reached


def build(
    settings: dict[str, Any], measurement: str, inputs: torch.Tensor
) -> tuple[Call, dict[str, Any]]:
    """What is timed, and facts about it; see `serve.py`."""
    of_stage = transformer_call if "num_tokens" in settings else autoencoder_call
    call, facts = of_stage(settings, measurement, inputs)
    return call, {"versions": {"taming": taming.__version__}, **facts}


def autoencoder_call(
    settings: dict[str, Any], measurement: str, images: torch.Tensor
) -> tuple[Call, dict[str, Any]]:
    """Stage 1: a training step, `encode` or `decode`."""
    start = {"step": 0, "step_before_start": NEVER}.get(measurement)
    module = vqgan_training(settings, start).to(images.device)
    parts = {"autoencoder": list(module.vqgan.parameters())}
    if module.adversary is not None:
        parts["discriminator"] = list(module.adversary.discriminator.parameters())
        frozen = [m for m in module.perceptual.modules() if isinstance(m, FrozenNetwork)]
        parts["perceptual"] = [p for m in frozen for p in m.network.parameters()]
    facts = {"parameters": {name: sum(p.numel() for p in part) for name, part in parts.items()}}
    if settings["channels_last"]:
        images = images.contiguous(memory_format=torch.channels_last)
    if measurement in ("encode", "decode"):
        return inference(module.vqgan.eval(), settings, images, measurement), facts
    return training_step(module, settings, {"images": images}, module.vqgan.last_layer), facts


def vqgan_training(settings: dict[str, Any], start: int | None) -> VQGANTraining:
    """The training module; `start` None: neither discriminator nor perceptual loss."""
    optimizer = OptimizerConfig(learning_rate=1e-5)
    vqgan = VQGAN(
        quantizer={
            "kind": "vector",
            "codebook_size": settings["codebook_size"],
            "codebook_dim": settings["codebook_dim"],
            "revive_after": None,
        },
        resolution=settings["resolution"],
        base_channels=settings["base_channels"],
        channel_multipliers=settings["channel_multipliers"],
        num_residual_blocks=settings["num_residual_blocks"],
        attention_resolutions=settings["attention_resolutions"],
        latent_channels=settings["latent_channels"],
    )
    adversary = perceptual = None
    if start is not None:
        perceptual = LPIPSLoss(pretrained=False)  # the same work, and no download
        adversary = Adversary(
            PatchDiscriminator(
                base_channels=settings["discriminator_channels"],
                num_layers=settings["discriminator_layers"],
                norm="batch",
            ),
            optimizer=optimizer,
            start=start,
            warmup=0,
            ramp=0,
            weight=0.8,
            adaptive=True,
            max_steps=NEVER,
        )
    return VQGANTraining(
        vqgan,
        perceptual,
        adversary,
        optimizer=optimizer,
        max_steps=NEVER,
        gradient_clip=None,
        ema_decay=None,
        compile=settings["compile"],
        channels_last=settings["channels_last"],
    )


def inference(vqgan: VQGAN, settings: dict[str, Any], images: torch.Tensor, name: str) -> Call:
    """Encoding, or decoding of what that gives."""

    @torch.inference_mode()
    def encode() -> torch.Tensor:
        with autocast(settings):
            return vqgan.encode(images)

    indices = encode()

    @torch.inference_mode()
    def decode() -> torch.Tensor:
        with autocast(settings):
            return vqgan.decode(indices)

    return encode if name == "encode" else decode


def transformer_call(
    settings: dict[str, Any], measurement: str, tokens: torch.Tensor
) -> tuple[Call, dict[str, Any]]:
    """Stage 2: a training step, or sampling."""
    module = transformer_training(settings).to(tokens.device)
    gpt = module.transformer
    parts = {
        "blocks": [gpt.blocks],
        "embeddings": [gpt.token_embedding, gpt.positions],
        "head": [gpt.norm, gpt.head],
        "prefix": [gpt.prefix_embedding],  # the peers have none
    }
    facts: dict[str, Any] = {
        "parameters": {
            name: sum(p.numel() for module in modules for p in module.parameters())
            for name, modules in parts.items()
        }
    }
    if measurement == "gpt_step":
        batch = {
            "indices": to_indices(tokens, module.grid_size),
            "labels": tokens.new_zeros(len(tokens)),
        }
        return training_step(module, settings, batch, gpt.head.weight), facts
    generator = ImageGenerator(None, gpt, module.conditioning, module.grid_size).eval()
    if settings["dtype"] == "bf16":
        generator.to(torch.bfloat16)
    # each token's step reads all weights but the tables', of which it needs a row, and of each
    # sequence the keys and values so far
    n, width = settings["num_tokens"], gpt.head.weight.element_size()
    sequences = settings["batch_size"] * (1 if settings["guidance_scale"] == 1 else 2)
    weights = facts["parameters"]["blocks"] + facts["parameters"]["head"]
    cached = n * (n + 1) * settings["embed_dim"] * settings["num_layers"] * sequences
    facts["bytes_read"] = width * (n * weights + cached)
    return sampling(generator, settings, compiled=measurement == "sample_compiled"), facts


def transformer_training(settings: dict[str, Any]) -> TransformerTraining:
    """The training module; with guidance for one class, trained without it now and then."""
    guided = settings["guidance_scale"] != 1
    conditioning: Conditioning = ClassLabel(1, dropout=0.1) if guided else Unconditional()
    transformer = GPT(
        GPTConfig(
            codebook_size=settings["codebook_size"],
            num_prefix_ids=conditioning.num_prefix_ids,
            context_length=settings["num_tokens"],
            num_layers=settings["num_layers"],
            num_heads=settings["num_heads"],
            embed_dim=settings["embed_dim"],
            positions="learned",
        )
    )
    tokenizer = VQGAN(  # as small as can be: the tokens are there already
        quantizer={
            "kind": "vector",
            "codebook_size": settings["codebook_size"],
            "codebook_dim": 1,
        },
        resolution=2,
        base_channels=8,
        channel_multipliers=[1],
        num_residual_blocks=1,
        latent_channels=8,
    )
    height = int(settings["num_tokens"] ** 0.5)
    if height**2 != settings["num_tokens"]:
        height = 1
    return TransformerTraining(
        transformer,
        tokenizer,
        conditioning,
        (height, settings["num_tokens"] // height),
        optimizer=OptimizerConfig(learning_rate=1e-5, weight_decay=0.01),
        max_steps=NEVER,
        gradient_clip=None,
        num_samples=0,
        compile=settings["compile"],
    )


def training_step(
    module: Any, settings: dict[str, Any], batch: dict[str, torch.Tensor], weights: torch.Tensor
) -> Call:
    """A step as it is in training, on the same batch each time, without the trainer around it.

    Its result are `weights`, which are looked at for NaN.
    """
    optimizers = module.configure_optimizers()
    module.manual_backward = lambda loss: module.backward(loss)
    module.optimizers = lambda: optimizers
    module.log_every = NEVER
    module.step = 1  # the first step is logged in any case
    module.train()

    def step() -> torch.Tensor:
        with autocast(settings):
            module.training_step(batch, 0)
        return weights.detach()

    return step


def sampling(generator: ImageGenerator, settings: dict[str, Any], *, compiled: bool) -> Call:
    """`sample_tokens` for one batch."""
    batch_size = settings["batch_size"]
    guided = settings["guidance_scale"] != 1
    condition = torch.zeros(batch_size, dtype=torch.int64) if guided else None

    options = SamplingOptions(
        top_k=settings["top_k"],
        guidance=Guidance(settings["guidance_scale"]),
        seed=0,
        compile=compiled,
        batch_size=batch_size,
    )

    def sample() -> torch.Tensor:
        return generator.sample_tokens(batch_size, condition, options=options)

    return compiled_afresh(sample) if compiled else sample


def compiled_afresh(call: Call) -> Call:
    """Compiles in the first call with nothing kept from earlier runs: its time is a newcomer's."""
    from torch._inductor.utils import fresh_cache

    torch.compiler.reset()
    first = True

    def timed() -> torch.Tensor:
        nonlocal first
        with fresh_cache() if first else nullcontext():
            first = False
            return call()

    return timed
