"""This program's measurements: training steps, `encode`, `decode` and `sample_tokens`.

Everything that the peers do not do is off: averaged weights, gradient clipping, codebook revival.
"""

from contextlib import nullcontext
from typing import Any

import torch
from lightning import Trainer
from torch._inductor.utils import fresh_cache

import taming
from benchmarks import autoencoder, transformer
from benchmarks.peers.serve import Call, Settings, inference, num_parameters, training_step
from taming.conditioning import ClassLabel, Conditioning, Unconditional
from taming.discriminators import PatchDiscriminator
from taming.generation import Guidance, ImageGenerator, SamplingOptions
from taming.generation.speed import in_bfloat16
from taming.losses import LPIPSLoss
from taming.tokenizer import VQGAN
from taming.training import (
    Adversary,
    OptimizerConfig,
    TrainingModule,
    TransformerTraining,
    VQGANTraining,
)
from taming.training.execution import choose_execution
from taming.transformer import GPT, GPTConfig

NEVER = 10**9  # a step that no benchmark reaches
DEFAULT_STEPS = 50_000  # `trainer.max_steps` in the configs
OPTIMIZER = OptimizerConfig(learning_rate=1e-5)


def build(
    settings: Settings, measurement: str, inputs: torch.Tensor
) -> tuple[Call, dict[str, Any]]:
    """Returns the call to time and facts about it; see `peers/serve.py`."""
    if measurement in transformer.MEASUREMENTS:
        module = transformer_training(settings).to(inputs.device)
        gpt = module.transformer
        parts = {
            "blocks": [gpt.blocks],
            "embeddings": [gpt.token_embedding, gpt.positions],
            "head": [gpt.norm, gpt.head],
            "prefix": [gpt.prefix_embedding],  # no peer has this part
        }
    else:
        module = vqgan_training(settings, measurement).to(inputs.device)
        parts = {"autoencoder": [module.vqgan]}
        if module.adversary is not None:
            parts["discriminator"] = [module.adversary.discriminator]
        if module.perceptual is not None:
            parts["perceptual"] = [module.perceptual.lpips.network]
    parameters = num_parameters(**parts)
    facts: dict[str, Any] = {"versions": {"taming": taming.__version__}, "parameters": parameters}
    if "step" in measurement:
        return build_step(module, settings, batch_of(inputs), facts), facts
    if measurement in transformer.MEASUREMENTS:
        return build_sampling(module.generator, settings, measurement, facts), facts
    return build_coding(module, settings, measurement, inputs), facts


def vqgan_training(settings: Settings, measurement: str) -> VQGANTraining:
    """Builds stage 1; the discriminator trains in `step` and waits in `step_before_start`."""
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
            perceptual = LPIPSLoss(pretrained=False)  # the same work without a download
    return VQGANTraining(
        VQGAN(quantizer=quantizer, **{key: settings[key] for key in autoencoder.NETWORK}),
        perceptual,
        adversary,
        optimizer=OPTIMIZER,
        compile=settings["compile"],
        channels_last=settings["channels_last"],
    )


def transformer_training(settings: Settings) -> TransformerTraining:
    """Builds stage 2, with one class if it is sampled with guidance."""
    guided, grid_size = settings["guidance_scale"] != 1, (1, settings["num_tokens"])
    conditioning: Conditioning = ClassLabel(1, dropout=0.1) if guided else Unconditional()
    config = GPTConfig(
        **{key: settings[key] for key in transformer.NETWORK},
        **conditioning.transformer_config(grid_size),
        positions="learned",
    )
    generator = ImageGenerator(None, GPT(config), conditioning, grid_size)
    return TransformerTraining(generator, optimizer=OPTIMIZER, compile=settings["compile"])


def batch_of(inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Wraps images `(b c H W)` or tokens `(b n)` as a training batch of their stage."""
    if inputs.ndim == 4:
        return {"images": inputs}
    return {"indices": inputs[:, None], "labels": inputs.new_zeros(len(inputs))}


def build_step(
    module: TrainingModule,
    settings: Settings,
    batch: dict[str, torch.Tensor],
    facts: dict[str, Any],
) -> Call:
    """Builds a training step like that of Lightning's Trainer, always on the same batch.

    With the setting `auto`, `facts` records what a long training would choose.
    """
    if settings["compile"] or settings["auto"]:
        torch.compiler.reset()  # compilations of earlier measurements count towards a limit
    if settings["auto"]:
        device = torch.device(settings["device"])
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        module.set_execution(channels_last="auto", compile="auto")
        execution = choose_execution(
            "auto", module, lambda: batch, device, num_batches=DEFAULT_STEPS
        )
        dtype = "bf16" if execution.precision == "bf16-mixed" else "float32"
        facts |= {
            "dtype": dtype,
            "channels_last": execution.channels_last,
            "compile": execution.compile,
        }
        settings = settings | {"dtype": dtype}
    module.setup("fit")
    module.trainer = Trainer(
        accelerator="auto" if settings["device"].startswith("cuda") else "cpu",
        benchmark=True,  # as in configs/trainer
        max_steps=NEVER,
        log_every_n_steps=NEVER,
        logger=False,
    )
    module.to(settings["device"]).train()
    configured = module.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    optimizer.register_step_pre_hook(lambda *_: module.on_before_optimizer_step(optimizer))
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return training_step(settings, lambda: module.training_step(batch, 0)["loss"], optimizer)


def build_coding(
    module: VQGANTraining, settings: Settings, measurement: str, images: torch.Tensor
) -> Call:
    """Builds `encode` or `decode`."""
    module.setup("fit")
    if settings["channels_last"]:
        images = images.contiguous(memory_format=torch.channels_last)
    vqgan = module.vqgan.eval()
    encode = inference(settings, lambda: vqgan.encode(images))
    indices = encode()
    return encode if measurement == "encode" else inference(settings, lambda: vqgan.decode(indices))


def build_sampling(
    generator: ImageGenerator, settings: Settings, measurement: str, facts: dict[str, Any]
) -> Call:
    """Builds sampling; `facts` records how many bytes it must read."""
    b, n, guided = settings["batch_size"], settings["num_tokens"], settings["guidance_scale"] != 1
    generator.eval()
    device = torch.device(settings["device"])
    if settings["auto"] and in_bfloat16(device, settings["embed_dim"]):
        settings = settings | {"dtype": "bf16"}
    if settings["dtype"] == "bf16":
        generator.to(torch.bfloat16)
    facts["dtype"] = settings["dtype"]
    # the step of a token reads all weights except the embedding tables, and the cached keys and
    # values of each sequence
    cached = n * (n + 1) * settings["embed_dim"] * settings["num_layers"] * b * (1 + guided)
    weights = n * (facts["parameters"]["blocks"] + facts["parameters"]["head"])
    facts["bytes_read"] = (weights + cached) * generator.transformer.head.weight.element_size()
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
        with next(caches, nullcontext()):  # the first call compiles from scratch
            return generator.sample_tokens(b, condition, options=options)

    return sample
