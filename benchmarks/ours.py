"""This program's side: `training_step` of both stages, `encode`, `decode`, `sample_tokens`.

What the peers do not do (averaged weights, gradient clipping, codebook revival) is off.
"""

from contextlib import nullcontext
from typing import Any

import torch
from lightning import Trainer
from serve import Call, Settings, inference, num_parameters, training_step
from torch._inductor.utils import fresh_cache

import taming
from taming.conditioning import ClassLabel, Conditioning, Unconditional
from taming.discriminators import PatchDiscriminator
from taming.generation import Guidance, ImageGenerator, SamplingOptions
from taming.losses import LPIPSLoss
from taming.sequence import to_indices
from taming.training import (
    Adversary,
    OptimizerConfig,
    TrainingModule,
    TransformerTraining,
    VQGANTraining,
)
from taming.training.execution import Execution, choose_execution
from taming.transformer import GPT, GPTConfig
from taming.vqgan import VQGAN

NEVER = 10**9  # a step that is not reached
DEFAULT_STEPS = 50_000  # of a training whose length is not given
OPTIMIZER = OptimizerConfig(learning_rate=1e-5)
AUTOENCODER = (
    "resolution",
    "base_channels",
    "channel_multipliers",
    "num_residual_blocks",
    "attention_resolutions",
    "latent_channels",
)
TRANSFORMER = ("codebook_size", "num_layers", "num_heads", "embed_dim")
VERSIONS = {"taming": taming.__version__}


def build(
    settings: Settings, measurement: str, inputs: torch.Tensor
) -> tuple[Call, dict[str, Any]]:
    """Returns the call to time and facts about it; see `peers/serve.py`."""
    of_stage = transformer_call if "num_tokens" in settings else autoencoder_call
    return of_stage(settings, measurement, inputs)


def autoencoder_call(
    settings: Settings, measurement: str, images: torch.Tensor
) -> tuple[Call, dict[str, Any]]:
    """Builds a training step of stage 1, `encode` or `decode`."""
    module = vqgan_training(settings, measurement).to(images.device)
    parts = {"autoencoder": [module.vqgan]}
    if module.adversary is not None:
        parts["discriminator"] = [module.adversary.discriminator]
    if module.perceptual is not None:
        parts["perceptual"] = [module.perceptual.lpips.network]
    facts = {"versions": VERSIONS, "parameters": num_parameters(**parts)}
    if "step" in measurement:
        return step_of(module, settings, {"images": images}, facts), facts
    module.setup("fit")
    if settings["channels_last"]:
        images = images.contiguous(memory_format=torch.channels_last)
    vqgan = module.vqgan.eval()
    encode = inference(settings, lambda: vqgan.encode(images))
    indices = encode()
    decode = inference(settings, lambda: vqgan.decode(indices))
    return encode if measurement == "encode" else decode, facts


def vqgan_training(settings: Settings, measurement: str) -> VQGANTraining:
    """Builds stage 1; `step` has a discriminator, `step_before_start` one that does nothing yet."""
    quantizer = {
        "kind": "vector",
        "codebook_size": settings["codebook_size"],
        "codebook_dim": settings["codebook_dim"],
        "revive_after": None,
    }
    adversary = perceptual = None
    if measurement in ("step", "step_before_start"):
        discriminator = PatchDiscriminator(
            base_channels=settings["discriminator_channels"],
            num_layers=settings["discriminator_layers"],
            norm="batch",
        )
        adversary = Adversary(
            discriminator,
            optimizer=OPTIMIZER,
            start=0 if measurement == "step" else NEVER,
            warmup=0,
            ramp=0,
            weight=0.8,
            adaptive=True,
        )
        if settings.get("perceptual", True):
            perceptual = LPIPSLoss(pretrained=False)  # the same work, and no download
    return VQGANTraining(
        VQGAN(quantizer=quantizer, **{key: settings[key] for key in AUTOENCODER}),
        perceptual,
        adversary,
        optimizer=OPTIMIZER,
        compile=settings["compile"],
        channels_last=settings["channels_last"],
    )


def transformer_call(
    settings: Settings, measurement: str, tokens: torch.Tensor
) -> tuple[Call, dict[str, Any]]:
    """Builds a training step of stage 2, or sampling."""
    module = transformer_training(settings).to(tokens.device)
    generator, gpt, (b, n) = module.generator, module.transformer, tokens.shape
    parameters = num_parameters(
        blocks=[gpt.blocks],
        embeddings=[gpt.token_embedding, gpt.positions],
        head=[gpt.norm, gpt.head],
        prefix=[gpt.prefix_embedding],  # the peers have none
    )
    facts: dict[str, Any] = {"versions": VERSIONS, "parameters": parameters}
    if measurement == "gpt_step":
        return step_of(module, settings, token_batch(module, tokens), facts), facts
    generator.eval()
    if settings["dtype"] == "bf16":
        generator.to(torch.bfloat16)
    # each token's step reads all weights but the tables', of which it needs a row, and of each
    # sequence the keys and values so far
    guided = settings["guidance_scale"] != 1
    cached = n * (n + 1) * settings["embed_dim"] * settings["num_layers"] * b * (1 + guided)
    weights = n * (parameters["blocks"] + parameters["head"])
    facts["bytes_read"] = (weights + cached) * gpt.head.weight.element_size()
    compiled = measurement == "sample_compiled"
    condition = torch.zeros(b, dtype=torch.int64) if guided else None
    guidance = Guidance(settings["guidance_scale"])
    options = SamplingOptions(
        top_k=settings["top_k"], guidance=guidance, seed=0, compile=compiled, batch_size=b
    )
    if compiled:
        torch.compiler.reset()
    caches = iter([fresh_cache()] if compiled else [])

    def sample() -> torch.Tensor:
        with next(caches, nullcontext()):  # the first call takes what a newcomer's does
            return generator.sample_tokens(b, condition, options=options)

    return sample, facts


def transformer_training(settings: Settings) -> TransformerTraining:
    """Builds stage 2; where there is guidance the model knows one class."""
    guided, grid_size = settings["guidance_scale"] != 1, (1, settings["num_tokens"])
    conditioning: Conditioning = ClassLabel(1, dropout=0.1) if guided else Unconditional()
    config = GPTConfig(
        **{key: settings[key] for key in TRANSFORMER},
        **conditioning.transformer_config(grid_size),
        positions="learned",
    )
    generator = ImageGenerator(None, GPT(config), conditioning, grid_size)
    return TransformerTraining(generator, optimizer=OPTIMIZER, compile=settings["compile"])


def token_batch(module: TransformerTraining, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns tokens `(b n)` as the batch that stage 2 trains on."""
    indices = to_indices(tokens, module.generator.grid_size)
    return {"indices": indices, "labels": tokens.new_zeros(len(tokens))}


def step_of(
    module: TrainingModule,
    settings: Settings,
    batch: dict[str, torch.Tensor],
    facts: dict[str, Any],
) -> Call:
    """Makes a step as Lightning's Trainer does it, on the same batch each time.

    With the setting `auto` the facts tell what a long training has chosen.
    """
    if settings["compile"] or settings["auto"]:
        torch.compiler.reset()  # earlier measurements' compilations count against a limit
    if settings["auto"]:
        device = torch.device(settings["device"])
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        auto = Execution("auto", "auto", "auto")
        way = choose_execution(
            auto, module, lambda: batch, device, num_steps=DEFAULT_STEPS, world_size=1
        )
        module.settle(channels_last=way.channels_last, compile=way.compile)
        dtype = "bf16" if way.precision == "bf16-mixed" else "float32"
        facts |= {"dtype": dtype, "channels_last": way.channels_last, "compile": way.compile}
        settings = settings | {"dtype": dtype}
    module.setup("fit")
    module.trainer = Trainer(
        accelerator="auto" if settings["device"].startswith("cuda") else "cpu",
        max_steps=NEVER,
        log_every_n_steps=NEVER,
        logger=False,
    )
    module.to(settings["device"]).train()
    configured = module.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    optimizer.register_step_pre_hook(lambda *_: module.configure_gradient_clipping(optimizer))
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return training_step(settings, lambda: module.training_step(batch, 0)["loss"], optimizer)
